"""The audit: what a task proves of one replica, and what is proven of all of them together."""
