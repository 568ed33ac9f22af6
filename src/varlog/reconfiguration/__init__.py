"""Layer 2½: how a sequenced topic gets its next projection.

Clients and the manager do it in the same way, and share only this package.
"""
