"""Files of real processes that are harmed: every file, every harm."""
