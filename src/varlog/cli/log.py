"""`varlog append`, `read`, `tail` and `trim`: entries in and out of a topic, fit for pipes."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Annotated, cast

import typer

from varlog.cli.output import WRONG_USAGE, fail, print_json, readable, run
from varlog.cli.target import DEFAULT_CLUSTER, ClusterOption, DataOption, JsonOption, Target, target
from varlog.runtime.logging import escaped

if TYPE_CHECKING:
    from varlog.model.entry import Entry, Run

_Topic = Annotated[str, typer.Argument(help="The topic's name.")]
_Raw = Annotated[
    bool,
    typer.Option("--raw", help="Entries as they are also on a terminal, which they may then drive."),
]
_Positions = Annotated[
    bool, typer.Option("--positions", "-p", help="Before each entry: its position, log stream and LLSN.")
]
# Lines of stdin that one batch takes at most; fewer if fewer wait.
_LINES_BYTES_MAX = 1 << 20
_LINES_MAX = 10_000


def append(
    topic: _Topic,
    text: Annotated[
        list[str] | None,
        typer.Argument(help="Entries, appended as one batch. None, or -: the lines of stdin."),
    ] = None,
    stream: Annotated[int | None, typer.Option(help="The log stream to append to [any that runs].")] = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """Append entries to a topic, and print where they are."""
    entries = [part.encode("utf-8", "surrogateescape") for part in text or ["-"]]
    batches = _stdin_batches() if entries == [b"-"] else _one_batch(entries)
    run(_append(target(cluster, data), topic, batches, stream, json_))


async def _append(
    where: Target, topic: str, batches: AsyncIterator[list[bytes]], stream: int | None, as_json: bool
) -> None:
    async with where.log(topic, create=None) as log:
        async for batch in batches:
            # One at a time: the lines of a pipe stay in order.
            _tell_run(await log.append_batch(batch, log_stream=stream), as_json)


def _tell_run(appended: Run, as_json: bool) -> None:
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
    """Whatever lines have arrived, as one batch: a slow pipe is not held back, a fast one is batched."""
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
    position: Annotated[int | None, typer.Argument(help="The position to read (GLSN).")] = None,
    end: Annotated[int | None, typer.Option(help="Read on, up to but without this position.")] = None,
    stream: Annotated[int | None, typer.Option(help="Read by --llsn of this log stream.")] = None,
    llsn: Annotated[int | None, typer.Option(help="Position in the log stream --stream.")] = None,
    positions: _Positions = False,
    raw: _Raw = False,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """Read one entry, or those from POSITION up to --end."""
    if (
        (position is None) == (llsn is None)
        or (stream is None) != (llsn is None)
        or (llsn and end is not None)
    ):
        fail("read takes a POSITION (and --end), or --stream with --llsn", WRONG_USAGE)
    run(_read(target(cluster, data), topic, position, end, stream, llsn, _Printer(positions, json_, raw)))


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
        bool, typer.Option("--follow", "-f", help="Go on with what is appended later.")
    ] = False,
    begin: Annotated[int | None, typer.Option("--from", help="Begin at this position.")] = None,
    count: Annotated[int, typer.Option("-n", min=0, help="Begin so many entries before the end.")] = 10,
    positions: _Positions = False,
    raw: _Raw = False,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """Print the newest entries of a topic."""
    run(_tail(target(cluster, data), topic, follow, begin, count, _Printer(positions, json_, raw)))


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
    position: Annotated[int, typer.Argument(help="Everything at or below it is deleted, for ever.")],
    respect_readers: Annotated[
        bool, typer.Option("--respect-readers", help="Not beyond what every named reader has read.")
    ] = False,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """Delete the oldest entries of a topic on every replica."""
    oldest = run(_trim(target(cluster, data), topic, position, respect_readers)) + 1
    if json_:
        print_json({"topic": topic, "trimmed": oldest - 1})
    else:
        print(f"trimmed: the oldest entry of {topic} that can be read is now at {oldest}")


async def _trim(where: Target, topic: str, position: int, respect_readers: bool) -> int:
    async with where.log(topic, create=False) as log:
        await log.trim(position, respect_readers=respect_readers)
        return await log.trimmed()


class _Printer:
    """Entries to stdout: bytes as they are, or with positions, or as JSON lines. On a terminal what is not printable is escaped,
    unless they are wanted raw: an entry shall not drive the terminal of a person who looks at it."""

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
    """`data` is text; an entry that is no UTF-8 has `base64` instead."""
    import base64

    told: dict[str, object] = {
        "glsn": entry.glsn,
        "llsn": entry.llsn,
        "log_stream": entry.log_stream,
        "time_us": entry.time_us,
    }
    try:
        told["data"] = entry.data.decode("utf-8")
    except UnicodeDecodeError:
        told["base64"] = base64.b64encode(entry.data).decode()
    return told
