"""The systems that are compared: what each is, how it is set up, what it promises, and which workloads it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.contract import ServerGroup
from benchmarks.peers.programs import require

# Kinds of workloads; a system runs the kinds it names.
CURVE, MAIN, SIZES, STREAMS, READ = "curve", "main", "sizes", "streams", "read"
EVERYTHING = frozenset({CURVE, MAIN, SIZES, STREAMS, READ})


@dataclass(frozen=True, slots=True)
class Promise:
    """When an append is answered, and what becomes of the entry after a fault: kept, or what may be lost."""

    answered: str
    process_killed: str
    one_power_loss: str
    all_power_loss: str
    disk_lost: str


@dataclass(frozen=True, slots=True)
class System:
    """One row of the tables. Systems of the same `group` share its servers. `synced`: its disk has the entry before the answer."""

    name: str
    title: str
    group: str
    copies: int
    synced: bool
    setting: str
    client: str
    promise: Promise
    kinds: frozenset[str] = EVERYTHING


KEPT = "kept"
_ALL_SYNCED = Promise("all 3 copies are synced", KEPT, KEPT, KEPT, "kept: two more have it")
_MOST_SYNCED = Promise("2 of 3 copies are synced", KEPT, KEPT, KEPT, "kept: one more has it")
_ONE_SYNCED = Promise("it is synced", KEPT, KEPT, KEPT, "lost")
_MOST_LATER = Promise(
    "2 of 3 servers have it in memory",
    *(
        "kept: one more has it",
        "kept: one more has it",
        "up to the last 2 minutes may be lost",
        "kept: one more has it",
    ),
)
_ONE_LATER = Promise(
    "the operating system has it", KEPT, "up to the last 2 minutes may be lost", "the same", "lost"
)
_ONE_SECOND = Promise(
    "the operating system has it, or a sync is under way",
    *("kept, or the last second", "the last second or two may be lost", "the same", "lost"),
)

_ALWAYS = "`sync_interval: always`"
_TWO_MINUTES = "its default, synced every 2 minutes"
_BARE_NATS = "the protocol itself, over one connection (batches: 8)"
_BARE_REDIS = "the protocol itself, over 16 connections, answers parsed by hiredis"
_SYNCED_REDIS = "`appendfsync always`"
_STUBS = "grpc.aio, etcd's own stubs"
_SHORT = frozenset({MAIN, READ})
_NO_STREAMS = EVERYTHING - {STREAMS}
_DEFAULTS = frozenset({CURVE, MAIN, READ})

SYSTEMS: tuple[System, ...] = (
    System("varlog-3", "varlog, 3 copies", "varlog", 3, True, "its defaults", "varlog.aio", _ALL_SYNCED),
    System(
        "varlog-sequenced-3", "varlog, sequenced, 3 copies", "varlog", 3, True, "its defaults", "varlog.aio",
        _ALL_SYNCED,
    ),
    System("varlog-1", "varlog, 1 copy", "varlog", 1, True, "its defaults", "varlog.aio", _ONE_SYNCED),
    System(
        "varlog-embedded", "varlog, embedded", "varlog-embedded", 1, True, "its defaults", "varlog.aio, in the same process",
        _ONE_SYNCED, _NO_STREAMS,
    ),
    System("nats-3", "NATS JetStream, 3 copies, synced; nats-py", "nats-3", 3, True, _ALWAYS, "nats-py", _MOST_SYNCED, _SHORT),
    System("nats-3-bare", "NATS JetStream, 3 copies, synced; bare", "nats-3", 3, True, _ALWAYS, _BARE_NATS, _MOST_SYNCED),
    System("nats-1-bare", "NATS JetStream, 1 copy, synced; bare", "nats-1", 1, True, _ALWAYS, _BARE_NATS, _ONE_SYNCED),
    System(
        "nats-3-default-bare", "NATS JetStream, 3 copies, default; bare", "nats-3-default", 3, False, _TWO_MINUTES, _BARE_NATS,
        _MOST_LATER, _DEFAULTS,
    ),
    System(
        "nats-1-default-bare", "NATS JetStream, 1 copy, default; bare", "nats-1-default", 1, False, _TWO_MINUTES, _BARE_NATS,
        _ONE_LATER, _DEFAULTS,
    ),
    System(
        "redis-1", "Redis Streams, 1 copy, synced; redis-py", "redis-1", 1, True, _SYNCED_REDIS, "redis-py with hiredis",
        _ONE_SYNCED, _SHORT,
    ),
    System("redis-1-bare", "Redis Streams, 1 copy, synced; bare", "redis-1", 1, True, _SYNCED_REDIS, _BARE_REDIS, _ONE_SYNCED),
    System(
        "redis-1-everysec-bare", "Redis Streams, 1 copy, everysec; bare", "redis-1-everysec", 1, False,
        "`appendfsync everysec`, the default of its file", _BARE_REDIS, _ONE_SECOND, _DEFAULTS,
    ),
    System("etcd-3", "etcd puts, 3 copies", "etcd-3", 3, True, "its defaults", _STUBS, _MOST_SYNCED, _NO_STREAMS),
    System("etcd-1", "etcd puts, 1 copy", "etcd-1", 1, True, "its defaults", _STUBS, _ONE_SYNCED, _NO_STREAMS),
)  # fmt: skip


def chosen(only: Sequence[str]) -> list[System]:
    """Those named, by a whole name or by its beginning (`nats`, `varlog-3`); all without a name."""
    if not only:
        return list(SYSTEMS)
    for word in only:
        if not any(_named(system, word) for system in SYSTEMS):
            raise ValueError(
                f"no system is called {word}: there are {', '.join(system.name for system in SYSTEMS)}"
            )
    return [system for system in SYSTEMS if any(_named(system, word) for word in only)]


def _named(system: System, word: str) -> bool:
    whole = any(word == other.name for other in SYSTEMS)
    return system.name == word if whole else system.name.startswith(word)


def group_of(name: str, directory: Path) -> ServerGroup:
    """The servers called `name`, not started yet. PeerMissing if their program or client is not installed."""
    return _GROUPS[name](directory)


# Each imports its client when it is asked for: who measures one peer needs no other.


def _varlog(directory: Path) -> ServerGroup:
    from benchmarks.peers.ours import OurCluster

    return OurCluster(directory)


def _embedded(directory: Path) -> ServerGroup:
    from benchmarks.peers.ours import OurProcess

    return OurProcess(directory)


def _nats(copies: int, *, always: bool) -> Callable[[Path], ServerGroup]:
    def made(directory: Path) -> ServerGroup:
        require("nats", "nats-py")
        from benchmarks.peers.jetstream import JetStream

        return JetStream(directory, copies=copies, always=always)

    return made


def _redis(*, always: bool) -> Callable[[Path], ServerGroup]:
    def made(directory: Path) -> ServerGroup:
        require("redis", "redis")
        require("hiredis", "hiredis")
        from benchmarks.peers.redis_streams import RedisStreams

        return RedisStreams(directory, always=always)

    return made


def _etcd(copies: int) -> Callable[[Path], ServerGroup]:
    def made(directory: Path) -> ServerGroup:
        require("aetcd", "aetcd")
        from benchmarks.peers.etcd_keys import EtcdKeys

        return EtcdKeys(directory, copies=copies)

    return made


_GROUPS: dict[str, Callable[[Path], ServerGroup]] = {
    "varlog": _varlog,
    "varlog-embedded": _embedded,
    "nats-3": _nats(3, always=True),
    "nats-1": _nats(1, always=True),
    "nats-3-default": _nats(3, always=False),
    "nats-1-default": _nats(1, always=False),
    "redis-1": _redis(always=True),
    "redis-1-everysec": _redis(always=False),
    "etcd-3": _etcd(3),
    "etcd-1": _etcd(1),
}
