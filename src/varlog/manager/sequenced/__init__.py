"""Repair of sequenced topics; rules.py decides the next step."""
