"""`varlog bench`: workloads on a real cluster, told as ratios to the raw limits of the same machine in the same run."""

from __future__ import annotations

from varlog.cli.bench.command import bench_command

__all__ = ["bench_command"]
