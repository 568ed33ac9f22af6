"""Judging a history from outside: what clients asked and were answered, checked law by law."""
