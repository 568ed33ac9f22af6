"""The simulator: a whole cluster of production code in one deterministic loop.

One seed is one history.
"""
