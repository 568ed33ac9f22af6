"""What a simulated run consists of: loop, network, drives, hosts and plan."""
