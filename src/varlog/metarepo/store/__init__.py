"""Stores of the metadata repository.

One contract, several backends, one conformance suite.
"""
