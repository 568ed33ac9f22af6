"""The order of committed topics: reports in, commits out."""
