"""Store of one log unit (sequenced ordering): write-once pages, their index, sync watermark."""
