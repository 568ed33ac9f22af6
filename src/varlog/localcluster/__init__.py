"""A cluster on this machine, as a library: processes, ports, supervisor, waits."""
