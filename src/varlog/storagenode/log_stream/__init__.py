"""One replica of one log stream: its state machine, and the parts that carry out what it decides."""
