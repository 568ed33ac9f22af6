"""A cluster on this machine, as a library: its processes, ports, supervisor and waits."""
