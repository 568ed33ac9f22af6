"""The same workloads against varlog and against what people use instead, by turns, in one run: `make bench-peers`."""
