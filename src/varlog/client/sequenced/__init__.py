"""Client of sequenced topics: gets positions and writes the chains (R-SEQ-4)."""
