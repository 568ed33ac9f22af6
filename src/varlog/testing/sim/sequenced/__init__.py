"""What a simulated run has only for sequenced topics."""
