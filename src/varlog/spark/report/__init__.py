"""The report of a topic: its figures, its plots and its page."""
