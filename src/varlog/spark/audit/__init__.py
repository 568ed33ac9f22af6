"""The audit: verifies each replica, and all replicas of a stream together."""
