"""One replica of a log stream (committed ordering): its state machine and what carries it out."""
