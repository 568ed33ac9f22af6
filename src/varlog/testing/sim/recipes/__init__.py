"""Simulated runs whose users use recipes."""
