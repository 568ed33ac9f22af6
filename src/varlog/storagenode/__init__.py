"""Layer 3: replicas on disks (a process)."""
