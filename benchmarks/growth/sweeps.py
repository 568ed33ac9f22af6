"""Sweep, Point: one dimension along which the load grows, and what was measured at each step of it; as JSON, in parts or whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from varlog.model.limits import GIB, KIB, MIB

JSON_VERSION = 1


@dataclass(frozen=True, slots=True)
class Sweep:
    """`loads` are its steps; `rates` are the figures that must not fall, `latencies` those that must not jump, and `shares` rates
    that may fall as the load grows, and no faster (see cliffs)."""

    name: str
    title: str
    what: str
    load: str
    loads: tuple[int, ...]
    quick_loads: tuple[int, ...]
    rates: tuple[str, ...]
    latencies: tuple[str, ...]
    shares: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured at one load. `busy` says how many cores each process had, and all of them together."""

    load: int
    figures: dict[str, float]
    busy: dict[str, float]


APPEND = ("appends_per_s",), ("p50_s", "p99_s")

SWEEPS = {
    sweep.name: sweep
    for sweep in (
        Sweep(
            "streams",
            "Log streams of one topic",
            "256 appenders of 1 KiB, one entry a call, on one topic",
            "log streams",
            (1, 2, 4, 8, 16, 32, 64),
            (1, 4),
            *APPEND,
        ),
        Sweep(
            "topics",
            "Topics",
            "32 callers with batches of 100 x 1 KiB, then 256 appenders of 1 KiB, one entry a call, all going round the topics; a "
            "log stream each. Batches are as large with any number of topics; single entries are gathered by topic, so the more "
            "topics the fewer of them share a batch, a message and a sync",
            "topics",
            (1, 4, 16, 64, 250, 1000),
            (1, 8),
            ("entries_per_s", "topics_made_per_s"),
            ("batch_p50_s", "batch_p99_s", "p50_s", "p99_s"),
            ("appends_per_s",),
        ),
        Sweep(
            "appenders",
            "Appenders",
            "tasks that each append 1 KiB, one entry a call, to one topic with one log stream",
            "appenders",
            (1, 4, 16, 64, 256, 1024, 4096),
            (1, 64),
            *APPEND,
        ),
        Sweep(
            "entry",
            "Entry size",
            "64 appenders, one entry a call, on one topic with one log stream",
            "bytes an entry",
            (16, 64, 256, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB),
            (16, 64 * KIB),
            ("bytes_per_s",),
            APPEND[1],
        ),
        Sweep(
            "size",
            "Log size",
            "one topic with one log stream, filled with batches of 1000 x 1 KiB; at each size one appender, reads of single "
            "entries anywhere in the log, and a storage node killed and started again",
            "bytes in the log",
            (64 * MIB, 256 * MIB, GIB, 4 * GIB),
            (8 * MIB, 32 * MIB),
            ("bytes_per_s",),
            ("p50_s", "p99_s", "read_p50_s", "read_p99_s", "reopen_s"),
        ),
        Sweep(
            "readers",
            "Readers",
            "subscribers of one topic, each with a connection of its own: all from the start (1 KiB entries, in lists, again and "
            "again), then all live while one client appends 100 entries/s",
            "readers",
            (1, 4, 16, 64, 256),
            (1, 8),
            ("entries_per_s", "live_per_s"),
            ("live_p50_s", "live_p99_s"),
        ),
    )
}

Points = Mapping[str, Sequence[Point]]


def as_json(
    conditions: Mapping[str, Any], raw: Mapping[str, float], points: Points, *, quick: bool = False
) -> dict[str, Any]:
    """A report, or a part of one: what other runs have measured can be added to it. `quick`: nobody should rely on it."""
    sweeps = {name: [asdict(point) for point in found] for name, found in points.items()}
    return {
        "version": JSON_VERSION,
        "quick": quick,
        "conditions": dict(conditions),
        "raw": dict(raw),
        "sweeps": sweeps,
    }


def points_of(report: Mapping[str, Any]) -> dict[str, list[Point]]:
    return {name: [Point(**point) for point in found] for name, found in report["sweeps"].items()}


def merged(reports: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One report out of parts, in the order of the sweeps. A sweep that several have measured is the last one's; so are conditions
    and raw limits."""
    report: dict[str, Any] = {}
    for part in reports:
        if part["version"] != JSON_VERSION:
            raise ValueError(
                f"a part has version {part['version']}, this program reads {JSON_VERSION}: measure it again"
            )
        quick = part["quick"] or report.get("quick", False)
        report = {**part, "quick": quick, "sweeps": report.get("sweeps", {}) | part["sweeps"]}
    if not report:
        raise ValueError("no parts: nothing to put together")
    report["sweeps"] = {name: report["sweeps"][name] for name in SWEEPS if name in report["sweeps"]}
    return report
