"""Client of committed topics: storage nodes write, the repository orders."""
