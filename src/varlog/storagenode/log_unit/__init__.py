"""One log unit: write-once positions of one log stream of a sequenced topic, and the parts that carry out its decisions."""
