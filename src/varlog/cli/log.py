"""`varlog append`, `read`, `tail` and `trim`, which work well in pipes."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Annotated, cast

import typer

from varlog.cli.output import WRONG_USAGE, fail, print_json, readable, run_async
from varlog.cli.target import DEFAULT_CLUSTER, ClusterOption, DataOption, JsonOption, Target, target
from varlog.runtime.logging import escaped

if TYPE_CHECKING:
    from varlog.model.entry import Entry, Run

_Topic = Annotated[str, typer.Argument(help="The topic's name.")]
_Raw = Annotated[
    bool,
    typer.Option("--raw", help="Print bytes unescaped even on a terminal, which they may then control."),
]
_Positions = Annotated[
    bool, typer.Option("--positions", "-p", help="Print position, log stream and LLSN before each entry.")
]
# The largest batch of lines from stdin; fewer if fewer have arrived.
_LINES_BYTES_MAX = 1 << 20
_LINES_MAX = 10_000


def append(
    topic: _Topic,
    text: Annotated[
        list[str] | None,
        typer.Argument(
            help="Entries to append, as one atomic batch. Omit or pass - to read lines from stdin."
        ),
    ] = None,
    stream: Annotated[
        int | None, typer.Option(help="Log stream to append to (default: any that runs).")
    ] = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """Append entries and print their positions."""
    entries = [part.encode("utf-8", "surrogateescape") for part in text or ["-"]]
    batches = _stdin_batches() if entries == [b"-"] else _one_batch(entries)
    run_async(_append(target(cluster, data), topic, batches, stream, json_))


async def _append(
    where: Target, topic: str, batches: AsyncIterator[list[bytes]], stream: int | None, as_json: bool
) -> None:
    async with where.log(topic, create=None) as log:
        async for batch in batches:
            # One at a time: the lines of a pipe stay in order.
            _print_run(await log.append_batch(batch, log_stream=stream), as_json)


def _print_run(appended: Run, as_json: bool) -> None:
    first, last = appended.first, appended.last
    if as_json:
        print_json(
            {"glsn": first.glsn, "llsn": first.llsn, "log_stream": first.log_stream, "count": appended.count}
        )
    elif appended.count == 1:
        print(f"position {first.glsn} (log stream {first.log_stream}, LLSN {first.llsn})")
    else:
        print(
            f"positions {first.glsn} to {last.glsn} (log stream {first.log_stream}, LLSN {first.llsn} to {last.llsn})"
        )
    sys.stdout.flush()


async def _one_batch(entries: list[bytes]) -> AsyncIterator[list[bytes]]:
    yield entries


async def _stdin_batches() -> AsyncIterator[list[bytes]]:
    """All lines that have arrived, as one batch: a slow pipe is not delayed, a fast one is batched."""
    begun = b""
    pipe = cast(io.BufferedReader, sys.stdin.buffer)
    while arrived := await asyncio.to_thread(pipe.read1, _LINES_BYTES_MAX):
        *lines, begun = (begun + arrived).split(b"\n")
        for at in range(0, len(lines), _LINES_MAX):
            yield lines[at : at + _LINES_MAX]
    if begun:
        yield [begun]


def read(
    topic: _Topic,
    position: Annotated[int | None, typer.Argument(help="Position to read (GLSN).")] = None,
    end: Annotated[int | None, typer.Option(help="Read up to this position (exclusive).")] = None,
    stream: Annotated[int | None, typer.Option(help="Log stream to read from, by --llsn.")] = None,
    llsn: Annotated[int | None, typer.Option(help="Position in the log stream (LLSN).")] = None,
    positions: _Positions = False,
    raw: _Raw = False,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """Read the entry at POSITION, or all entries from POSITION up to --end."""
    if (
        (position is None) == (llsn is None)
        or (stream is None) != (llsn is None)
        or (llsn and end is not None)
    ):
        fail("pass a POSITION (and optionally --end), or --stream with --llsn", WRONG_USAGE)
    run_async(
        _read(target(cluster, data), topic, position, end, stream, llsn, _Printer(positions, json_, raw))
    )


async def _read(
    where: Target,
    topic: str,
    position: int | None,
    end: int | None,
    stream: int | None,
    llsn: int | None,
    printer: _Printer,
) -> None:
    from varlog.model.errors import NotWritten

    async with where.log(topic, create=False) as log:
        if stream is not None and llsn is not None:
            printer.print([await log.read_stream(stream, llsn)])
        elif position is not None and end is None:
            printer.print([await log.read(position)])
        elif position is not None and end is not None:
            newest = await log.tail()
            if position <= newest:
                async for entries in log.subscribe_lists(position, min(end, newest + 1)):
                    printer.print(entries)
            if end > newest + 1:
                raise NotWritten(max(position, newest + 1), newest)


def tail(
    topic: _Topic,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing entries as they are appended.")
    ] = False,
    begin: Annotated[int | None, typer.Option("--from", help="Start at this position.")] = None,
    count: Annotated[int, typer.Option("-n", min=0, help="Number of entries to show.")] = 10,
    positions: _Positions = False,
    raw: _Raw = False,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """Print the newest entries of a topic."""
    run_async(_tail(target(cluster, data), topic, follow, begin, count, _Printer(positions, json_, raw)))


async def _tail(
    where: Target, topic: str, follow: bool, begin: int | None, count: int, printer: _Printer
) -> None:
    async with where.log(topic, create=False) as log:
        newest = await log.tail()
        if begin is None:
            begin = max(newest - count, await log.trimmed()) + 1
        end = None if follow else newest + 1
        if end is None or begin < end:
            async for entries in log.subscribe_lists(begin, end):
                printer.print(entries)


def trim(
    topic: _Topic,
    position: Annotated[
        int, typer.Argument(help="Delete everything up to and including this position, irreversibly.")
    ],
    respect_readers: Annotated[
        bool,
        typer.Option("--respect-readers", help="Refuse if a named reader has not read up to this position."),
    ] = False,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """Delete the oldest entries of a topic on every replica."""
    oldest = run_async(_trim(target(cluster, data), topic, position, respect_readers)) + 1
    if json_:
        print_json({"topic": topic, "trimmed": oldest - 1})
    else:
        print(f"trimmed: the oldest entry of {topic} that can be read is now at {oldest}")


async def _trim(where: Target, topic: str, position: int, respect_readers: bool) -> int:
    async with where.log(topic, create=False) as log:
        await log.trim(position, respect_readers=respect_readers)
        return await log.trimmed()


class _Printer:
    """Prints entries to stdout: plain bytes, with positions, or as JSON lines. On a terminal, unprintable characters are escaped
    unless raw output was requested: an entry must not control the terminal."""

    def __init__(self, positions: bool, as_json: bool, raw: bool) -> None:
        self._positions = positions
        self._as_json = as_json
        self._escapes = sys.stdout.isatty() and not raw

    def print(self, entries: Iterable[Entry]) -> None:
        out = sys.stdout.buffer
        for entry in entries:
            if self._as_json:
                out.flush()
                print_json(_as_dict(entry))
                sys.stdout.flush()
                continue
            if self._positions:
                out.write(b"%d\t%d\t%d\t" % (entry.glsn, entry.log_stream, entry.llsn))
            shown = escaped(readable(entry.data)).encode() if self._escapes else entry.data
            out.write(shown + b"\n")
        out.flush()


def _as_dict(entry: Entry) -> dict[str, object]:
    """`data` is text; an entry that is not UTF-8 has `base64` instead."""
    import base64

    fields: dict[str, object] = {
        "glsn": entry.glsn,
        "llsn": entry.llsn,
        "log_stream": entry.log_stream,
        "time_us": entry.time_us,
    }
    try:
        fields["data"] = entry.data.decode("utf-8")
    except UnicodeDecodeError:
        fields["base64"] = base64.b64encode(entry.data).decode()
    return fields
