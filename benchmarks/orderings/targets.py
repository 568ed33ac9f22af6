"""Targets of the sequenced ordering, against the committed one in the same run."""

from __future__ import annotations

from varlog.bench.figures import format_count, format_mb_s, format_ms
from varlog.bench.machine import RawLimits
from varlog.bench.workload import BenchResult, Measured

POSITIONS_PER_S_MIN = 500_000


class LatencyAgainstCommitted:
    """p50 of the sequenced ordering, as a ratio to the committed one's; at most `ratio_max`."""

    def __init__(self, ratio_max: float) -> None:
        self._ratio_max = ratio_max

    def __call__(self, measured: Measured, raw: RawLimits) -> BenchResult:
        ratio = measured["sequenced_p50_s"] / measured["committed_p50_s"]
        return BenchResult(
            _latency_text(measured, "sequenced"),
            ratio <= self._ratio_max,
            ratio,
            f"committed, {_latency_text(measured, 'committed')}",
        )


class RateAgainstCommitted:
    """Entries a second of the sequenced ordering, as a ratio to the committed one's; at least `ratio_min`."""

    def __init__(self, ratio_min: float) -> None:
        self._ratio_min = ratio_min

    def __call__(self, measured: Measured, raw: RawLimits) -> BenchResult:
        ratio = measured["sequenced_entries_per_s"] / measured["committed_entries_per_s"]
        return BenchResult(
            _rate_text(measured, "sequenced"),
            ratio >= self._ratio_min,
            ratio,
            f"committed, {_rate_text(measured, 'committed')}",
        )


def judge_sequencer(measured: Measured, raw: RawLimits) -> BenchResult:
    """One sequencer, no disk on its way."""
    summary = (
        f"{format_count(measured['positions_per_s'])} positions/s, {measured['positions_a_call']:.0f} a call, "
        f"{format_count(measured['calls_per_s'])} calls/s, p50 {format_ms(measured['p50_s'])}, p99 {format_ms(measured['p99_s'])}"
    )
    return BenchResult(summary, measured["positions_per_s"] >= POSITIONS_PER_S_MIN)


def _latency_text(measured: Measured, side: str) -> str:
    return f"p50 {format_ms(measured[f'{side}_p50_s'])}, p99 {format_ms(measured[f'{side}_p99_s'])}"


def _rate_text(measured: Measured, side: str) -> str:
    summary = f"{format_count(measured[f'{side}_entries_per_s'])} entries/s"
    if f"{side}_bytes_per_s" in measured:
        summary += f", {format_mb_s(measured[f'{side}_bytes_per_s'])}"
    if f"{side}_p50_s" in measured:
        summary += f", p50 {format_ms(measured[f'{side}_p50_s'])}"
    return summary
