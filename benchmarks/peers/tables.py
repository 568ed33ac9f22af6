"""The peers' section of benchmarks/journal.md as Markdown: conditions, targets, promises, figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

from benchmarks.peers.samples import Findings, Spread
from benchmarks.peers.systems import SYSTEMS, System
from benchmarks.peers.targets import TargetResult, disk_share, reached, target_results
from varlog.bench.figures import format_count, format_mb_s, format_ms, median
from varlog.bench.machine import DEFINITION

NOTHING = "–"
APPENDERS = (1, 4, 16, 64, 256)
SIZES = (
    ("100 B", "size-100"),
    ("1 KiB", "append-64"),
    ("4 KiB", "size-4096"),
    ("16 KiB", "size-16384"),
    ("64 KiB", "size-65536"),
)
STREAMS = ((1, "append-64"), (4, "streams-4"), (16, "streams-16"))
COPIED = (
    ("varlog", "varlog-1", "varlog-3"),
    ("NATS JetStream, synced; bare", "nats-1-bare", "nats-3-bare"),
    ("NATS JetStream, default; bare", "nats-1-default-bare", "nats-3-default-bare"),
    ("etcd puts", "etcd-1", "etcd-3"),
)
BATCHES = ("batch-1000", "batch-1000/atomic")


def section(findings: Findings) -> str:
    """Everything between the markers, but for the plots."""
    parts = [
        _conditions(findings),
        "### What is reached\n\n" + _verdicts(findings),
        "### What the settings promise\n\n" + _promises(findings),
        "### The main workloads\n\n" + _main(findings),
        "### Latency and throughput\n\n" + _curve(findings),
        "### Entry sizes\n\n" + _sizes(findings),
        "### Streams\n\n" + _streams(findings),
        "### Copies\n\n" + _copies(findings),
        "### Processor time\n\n" + _cpu(findings),
        _failures(findings),
    ]
    return "\n\n".join(part for part in parts if part)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def told3(value: float) -> str:
    """A rate with three digits that count: 31 700, 2 310 000."""
    digits = max(0, len(str(int(value))) - 3)
    return format_count(round(value, -digits))


def told_rate(spread: Spread | None) -> str:
    if spread is None:
        return NOTHING
    return told3(spread.median) + (f" ({told3(spread.low)}–{told3(spread.high)})" if spread.count > 1 else "")


def told_latency(spread: Spread | None) -> str:
    if spread is None:
        return NOTHING
    between = f" ({spread.low * 1e3:.2f}–{spread.high * 1e3:.2f})" if spread.count > 1 else ""
    return format_ms(spread.median) + between


def ratio_text(spread: Spread | None) -> str:
    if spread is None:
        return NOTHING
    return f"{spread.median:.2f}" + (f" ({spread.low:.2f}–{spread.high:.2f})" if spread.count > 1 else "")


def best_batch(findings: Findings, system: System) -> tuple[str, Spread | None]:
    """The faster way of a system to append a batch, and its entries a second."""
    found = [(way, findings.spread(system.name, way, "entries_per_s")) for way in BATCHES]
    there = [(way, spread) for way, spread in found if spread is not None]
    return max(there, key=lambda one: one[1].median) if there else (BATCHES[0], None)


def _conditions(findings: Findings) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in findings.versions.items())
    idle = ", ".join(
        f"{name} {median(values):.3f}" for name, values in findings.idle.items() if name != "varlog-embedded"
    )
    lines = [
        *findings.conditions.lines(),
        f"peers: {versions}",
        _told_passes(findings),
        _told_raw(findings),
        DEFINITION,
    ]
    if idle:
        lines.append(f"all servers are up all the time; cores they take when nobody asks anything: {idle}")
    return "\n".join(f"- {line}" for line in lines)


def _told_passes(findings: Findings) -> str:
    duels = f", {_counted(findings.duels, 'round')} more of what is judged" if findings.duels else ""
    return (
        f"{_counted(findings.passes, 'pass')}{duels}, {findings.seconds:g} s a measurement; all systems one after the other for "
        "each workload, in another order each time; figures are medians, in parentheses the lowest and the highest"
    )


def _told_raw(findings: Findings) -> str:
    raw = findings.raw
    return (
        f"raw limits, median of {len(findings.rounds)} rounds: 1 KiB write+fdatasync p50 {format_ms(raw.sync_p50_s)}, "
        f"p99 {format_ms(raw.sync_p99_s)}; 1 MiB write+fdatasync {format_mb_s(raw.write_bytes_per_s)}; "
        f"loopback {format_mb_s(raw.loopback_bytes_per_s)}"
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('s') else 's'}"


def _verdicts(findings: Findings) -> str:
    share = disk_share(findings)
    rows = [_target_row(result, share) for result in target_results(findings)]
    return table(
        [
            "workload",
            "against",
            "due",
            "after",
            "against its own client",
            "against the best of any client",
            "reached",
        ],
        rows,
    )


def _target_row(result: TargetResult, share: float | None) -> list[str]:
    aim = result.aim
    due, after = (NOTHING if aim_of is None else f"{aim_of:g} x" for aim_of in (aim.due, aim.after))
    own, best = reached(aim, result.own_clients), reached(aim, result.best)
    reached_text = own if own == best else f"{own} against its own client, {best} against the best"
    if aim.workload == "batch-1000" and share is not None:
        after += ", or 0.9 of the raw disk"
        reached_text += f"; {share:.2f} of the raw disk"
    return [
        aim.title,
        aim.against,
        due,
        after,
        ratio_text(result.own_clients),
        ratio_text(result.best),
        reached_text,
    ]


def _promises(findings: Findings) -> str:
    heads = [
        "system", "setting", "client", "answered when", "process killed", "power loss, one machine",
        "power loss, all", "a disk lost",
    ]  # fmt: skip
    return table(
        heads,
        [
            [system.title, system.setting, system.client, *astuple(system.promise)]
            for system in _measured(findings)
        ],
    )


def _main(findings: Findings) -> str:
    rows = []
    for system in _measured(findings):
        way, batches = best_batch(findings, system)
        atomic = " (atomic)" if way.endswith("atomic") else ""
        rows.append(
            [
                system.title,
                told_latency(findings.spread(system.name, "append-1", "p50_s")),
                told_latency(findings.spread(system.name, "append-1", "p99_s")),
                told_rate(findings.spread(system.name, "append-64", "entries_per_s")),
                told_rate(batches) + atomic,
                told_rate(findings.spread(system.name, "read-100", "entries_per_s")),
                told_rate(findings.spread(system.name, "read-1024", "entries_per_s")),
            ]
        )
        rows += [
            [f"{system.title}, read {reached_text}", "", "", "", "", *(
                told_rate(findings.spread(system.name, f"{read}/{way}", "entries_per_s")) for read in ("read-100", "read-1024")
            )]
            for way, reached_text in (("lists", "in lists"), ("arrow", "through Arrow"))
            if findings.values(system.name, f"read-100/{way}", "entries_per_s")
        ]  # fmt: skip
    heads = [
        "system", "1 appender p50", "p99", "64 appenders, entries/s", "batches of 1000, entries/s", "read 100 B, entries/s",
        "read 1 KiB, entries/s",
    ]  # fmt: skip
    return table(heads, rows)


def _curve(findings: Findings) -> str:
    rows = []
    for system in _measured(findings, "append-16"):
        cells = [system.title]
        for appenders in APPENDERS:
            rate = findings.spread(system.name, f"append-{appenders}", "entries_per_s")
            latency = findings.spread(system.name, f"append-{appenders}", "p50_s")
            cells.append(
                NOTHING
                if rate is None or latency is None
                else f"{told3(rate.median)}, {format_ms(latency.median)}"
            )
        rows.append(cells)
    return table(
        ["1 KiB; entries/s, p50", *(_counted(appenders, "appender") for appenders in APPENDERS)], rows
    )


def _sizes(findings: Findings) -> str:
    rows = []
    for system in _measured(findings, "size-4096"):
        found = [findings.spread(system.name, workload, "bytes_per_s") for _, workload in SIZES]
        rows.append([system.title, *(NOTHING if one is None else f"{one.median / 1e6:.1f}" for one in found)])
    return table(["64 appenders; MB/s", *(size for size, _ in SIZES)], rows)


def _streams(findings: Findings) -> str:
    rows = []
    for system in _measured(findings, "streams-4"):
        found = [findings.spread(system.name, workload, "entries_per_s") for _, workload in STREAMS]
        rows.append([system.title, *map(told_rate, found)])
    return table(
        ["64 appenders, 1 KiB; entries/s", *(_counted(count, "stream") for count, _ in STREAMS)], rows
    )


def _copies(findings: Findings) -> str:
    rows = []
    for title, one, three in COPIED:
        cells = [title]
        for figure, workload in (("p50_s", "append-1"), ("entries_per_s", "append-64")):
            for name in (one, three):
                found = findings.spread(name, workload, figure)
                cells.append(told_latency(found) if figure == "p50_s" else told_rate(found))
        rows.append(cells)
    return table(
        ["system", "1 appender p50, 1 copy", "3 copies", "64 appenders, 1 copy, entries/s", "3 copies"], rows
    )


def _cpu(findings: Findings) -> str:
    rows = []
    for system in _measured(findings):
        batch, _ = best_batch(findings, system)
        rows.append(
            [
                system.title,
                *(
                    _told_cpu(findings, system, workload)
                    for workload in ("append-1", "append-64", batch, "read-100")
                ),
            ]
        )
    heads = ["servers + client, µs an entry", "1 appender", "64 appenders", "batches of 1000", "read 100 B"]
    return table(heads, rows)


def _told_cpu(findings: Findings, system: System, workload: str) -> str:
    servers = findings.spread(system.name, workload, "server_cpu_s_per_entry")
    client = findings.spread(system.name, workload, "client_cpu_s_per_entry")
    if servers is None or client is None:
        return NOTHING
    return f"{servers.median * 1e6:.2f} + {client.median * 1e6:.2f}"


def _failures(findings: Findings) -> str:
    if not findings.failures:
        return ""
    return "Not measured:\n\n" + "\n".join(f"- {failure}" for failure in findings.failures)


def _measured(findings: Findings, workload: str = "") -> list[System]:
    there = {sample.system for sample in findings.samples if not workload or sample.workload == workload}
    return [system for system in SYSTEMS if system.name in there]
