"""One log unit (sequenced ordering): write-once positions of one log stream of a chain."""
