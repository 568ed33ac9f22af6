"""Repair of committed topics; rules.py decides the next step."""
