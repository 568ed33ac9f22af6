"""Stores of the metadata repository.

They share one contract and one conformance suite.
"""
