"""Layer 1: the only doors to the outside world, so that a simulator can stand in for each."""
