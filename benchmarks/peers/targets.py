"""Targets: how many times better we are than the peers, against each aim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.peers.samples import Findings, Spread

OURS = "varlog-3"
# Peers that keep three synced copies, as we do.
SYNCED_3 = ("nats-3", "nats-3-bare")
REDIS = ("redis-1", "redis-1-bare")
COPIES = 3


@dataclass(frozen=True, slots=True)
class Aim:
    """One row: our figure against the peers', `due` times better at least, `after` times if we can. None: nothing was set."""

    title: str
    against: str
    figure: str
    workload: str
    peers: tuple[str, ...]
    due: float | None
    after: float | None
    # What the peers do, where it is not called as ours.
    theirs: tuple[str, ...] = ()
    lower_is_better: bool = False


_NATS = "NATS JetStream, 3 synced copies"
_BEST = "the best of NATS and Redis"
_BOTH = (*SYNCED_3, *REDIS)

AIMS: tuple[Aim, ...] = (
    Aim("1 appender, p50", _NATS, "p50_s", "append-1", SYNCED_3, 1.0, 1.5, lower_is_better=True),
    Aim("64 appenders", _NATS, "entries_per_s", "append-64", SYNCED_3, 1.5, 3.0),
    Aim("64 appenders", "Redis Streams, 1 synced copy", "entries_per_s", "append-64", REDIS, None, 1.0),
    Aim(
        "batches of 1000", _NATS, "entries_per_s", "batch-1000", SYNCED_3, 2.0, 4.0,
        ("batch-1000", "batch-1000/atomic"),
    ),
    Aim("read 100 B into Python, one by one", _BEST, "entries_per_s", "read-100", _BOTH, 1.0, 3.0),
    Aim(
        "read 100 B into Python, in lists", _BEST, "entries_per_s", "read-100/lists", _BOTH, 1.0, 3.0, ("read-100",)
    ),
    Aim("read 100 B through Arrow", _BEST, "entries_per_s", "read-100/arrow", _BOTH, None, 10.0, ("read-100",)),
)  # fmt: skip


# Slower than another client in every reading: it decides no target, and takes a long time.
_NO_DUEL = {("read-100", "nats-3")}


def duels() -> dict[str, tuple[str, ...]]:
    """The systems that decide a target, by workload."""
    found: dict[str, dict[str, None]] = {}
    for aim in AIMS:
        workload = aim.workload.partition("/")[0]
        peers = [name for name in aim.peers if (workload, name) not in _NO_DUEL]
        found.setdefault(workload, {}).update(dict.fromkeys((OURS, *peers)))
    return {workload: tuple(names) for workload, names in found.items()}


@dataclass(frozen=True, slots=True)
class TargetResult:
    """What was reached: against the peers by their own clients, and against the best that we got out of them."""

    aim: Aim
    own_clients: Spread | None
    best: Spread | None


def target_results(findings: Findings) -> list[TargetResult]:
    return [
        TargetResult(
            aim,
            _ratio(findings, aim, [name for name in aim.peers if "bare" not in name]),
            _ratio(findings, aim, aim.peers),
        )
        for aim in AIMS
    ]


def reached(aim: Aim, ratio: Spread | None) -> str:
    """In a word: what the median ratio is enough for."""
    if ratio is None:
        return "not measured"
    if aim.after is not None and ratio.median >= aim.after:
        return "what we are after"
    if aim.due is None:
        return "not reached"
    return "what is due" if ratio.median >= aim.due else "not reached"


def disk_share(findings: Findings) -> float | None:
    """What all copies of our batches write, against the raw disk of the same run."""
    found = findings.spread(OURS, "batch-1000", "bytes_per_s")
    return None if found is None else found.median * COPIES / findings.raw.write_bytes_per_s


def _ratio(findings: Findings, aim: Aim, peers: Sequence[str]) -> Spread | None:
    theirs = [(peer, workload) for peer in peers for workload in aim.theirs or (aim.workload,)]
    return findings.ratios(aim.figure, (OURS, aim.workload), theirs, lower_is_better=aim.lower_is_better)
