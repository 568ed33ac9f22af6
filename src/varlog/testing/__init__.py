"""Layer 6: what proves varlog; shipped so that users can test against it.

No product code imports it.
"""
