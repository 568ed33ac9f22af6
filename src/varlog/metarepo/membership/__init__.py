"""Nodes, streams, topics, projections, leases, named readers and writers."""
