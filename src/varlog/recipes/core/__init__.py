"""Shared by all recipes: replicated state machines, commands, sessions, snapshots."""
