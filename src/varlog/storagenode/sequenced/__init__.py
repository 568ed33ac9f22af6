"""Log unit of a chain (sequenced ordering): write-once positions of a stream."""
