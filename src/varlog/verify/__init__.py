"""Checking a history from outside: what clients asked and got, law by law."""
