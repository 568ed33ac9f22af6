"""The simulator: the production code of a whole cluster in one deterministic loop. One seed is one history."""
