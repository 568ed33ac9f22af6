"""`varlog dump`: inspect a data directory offline and check every byte in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from varlog.cli.output import FAILED, complain, fail, print_json, print_table, short_bytes
from varlog.runtime.logging import escaped

if TYPE_CHECKING:
    from varlog.storage.dump import Dump, ReplicaDump, UnitDump


def dump(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Data directory, volume, single replica or single log unit.")
    ],
    verify: Annotated[bool, typer.Option("--verify", help="Exit code 1 if anything is damaged.")] = False,
    segments: Annotated[bool, typer.Option("--segments", help="Also show the segment files.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the replicas and log units in a data directory and check every batch and commit row. Changes nothing."""
    from varlog.runtime.disk import OsDisk
    from varlog.storage.dump import dump as inspect

    if not directory.is_dir():
        fail(f"{directory} is not a directory")
    try:
        seen = inspect(OsDisk(), directory.absolute())
    except OSError as error:
        fail(f"{directory} cannot be read: {error}")
    if not seen.replicas and not seen.units:
        fail(f"{directory} contains no replica and no log unit: is it a data directory of varlog?")
    if json_:
        print_json(_as_json(seen))
    else:
        _print(seen, segments)
    for problem in seen.problems:
        complain(problem)
    if verify and seen.problems:
        raise typer.Exit(FAILED)


def _print(seen: Dump, segments: bool) -> None:
    columns = ("replica", "#topic", "#epoch", "#ordered", "#durable", "#trimmed", "#rows", "#bytes", "state")
    if seen.replicas:
        print_table("", columns, [_row(seen, replica) for replica in seen.replicas])
    if seen.units:
        columns = ("log unit", "#topic", "#epoch", "#low", "#newest", "#holes", "#junk", "#bytes", "state")
        print_table("", columns, [_unit_row(seen, unit) for unit in seen.units])
    if segments:
        print()
        rows = [
            (
                _below(seen, segment.path),
                f"{segment.first_llsn} to {segment.end_llsn - 1}",
                segment.batches,
                short_bytes(segment.batch_bytes),
                segment.index,
                segment.problem or "good",
            )
            for replica in seen.replicas
            for segment in replica.segments
        ] + [
            (
                _below(seen, segment.path),
                f"{segment.lowest_llsn} to {segment.highest_llsn}",
                segment.batches,
                short_bytes(segment.batch_bytes),
                segment.index,
                segment.problem or "good",
            )
            for unit in seen.units
            for segment in unit.segments
        ]
        print_table("", ("segment", "LLSN", "#batches", "#bytes", "index", "state"), rows)
    notes = [note for replica in seen.replicas for note in replica.notes]
    for note in notes + [note for unit in seen.units for note in unit.notes]:
        print(f"note: {escaped(note)}")


def _row(seen: Dump, replica: ReplicaDump) -> tuple[object, ...]:
    state = replica.state
    known = (state.topic, state.epoch) if state else ("?", "?")
    size = short_bytes(sum(segment.batch_bytes for segment in replica.segments))
    return (
        _below(seen, replica.path),
        *known,
        replica.committed_end - 1,
        replica.written_end - 1,
        state.trimmed if state else "?",
        replica.rows,
        size,
        "damaged" if replica.problems else "good",
    )


def _unit_row(seen: Dump, unit: UnitDump) -> tuple[object, ...]:
    state = unit.state
    known = (state.topic, state.epoch, state.low) if state else ("?", "?", "?")
    # Before the first run there is a hole, too, if it does not begin at the low LLSN.
    starts_late = state is not None and unit.runs > 0 and unit.dense_end == state.low
    return (
        _below(seen, unit.path),
        *known,
        unit.newest,
        max(0, unit.runs - 1) + starts_late,
        sum(segment.junk_entries for segment in unit.segments),
        short_bytes(sum(segment.batch_bytes for segment in unit.segments)),
        "damaged" if unit.problems else "good",
    )


def _below(seen: Dump, path: Path) -> str:
    return str(path.relative_to(seen.path)) if path != seen.path else path.name


def _as_json(seen: Dump) -> dict[str, object]:
    import msgspec

    fields: dict[str, object] = msgspec.to_builtins(seen, enc_hook=str)
    return fields | {"problems": seen.problems}
