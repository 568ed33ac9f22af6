"""Where the metadata repository keeps what it knows. One contract, several backends, one conformance suite."""
