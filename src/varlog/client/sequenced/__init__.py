"""The client of sequenced topics: it takes positions from the sequencer and writes along the chains itself (R-SEQ-4)."""
