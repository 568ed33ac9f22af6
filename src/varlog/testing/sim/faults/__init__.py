"""Faults of the simulator: their schedule, what each does, and what must survive."""
