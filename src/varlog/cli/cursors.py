"""`varlog reader` and `varlog writer`: list and forget named readers and writers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from varlog.cli.output import FAILED, fail, print_json, print_table, run_async
from varlog.cli.status import format_age, print_parts, reader_lag, readers_table
from varlog.cli.target import DEFAULT_CLUSTER, ClusterOption, DataOption, JsonOption, Target, target

if TYPE_CHECKING:
    from varlog.model.cluster import ClusterView, NamedReader, NamedWriter
    from varlog.model.commit import TopicMark

reader = typer.Typer(no_args_is_help=True, help="Named readers of topics: list with lag, forget.")
writer = typer.Typer(no_args_is_help=True, help="Named writers of topics: list, forget.")

_Topic = Annotated[str, typer.Argument(help="The topic's name.")]
_OfTopic = Annotated[str | None, typer.Option("--topic", help="Show only this topic.")]


# --- readers --------------------------------------------------------------------------------------------------


@reader.command("list")
def list_readers(
    topic: _OfTopic = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """List named readers with position, lag in entries, and time of the last update."""
    view, readers, tails = run_async(_readers(target(cluster, data), topic))
    rows_json = [reader_lag(view, tails, found, now_us=_now_us()) for found in readers]
    if json_:
        print_json(rows_json)
    elif rows_json:
        print_parts([readers_table(rows_json)])
    else:
        print("there are no named readers")


async def _readers(
    where: Target, topic: str | None
) -> tuple[ClusterView, tuple[NamedReader, ...], tuple[TopicMark, ...]]:
    async with where.admin() as admin:
        readers = await admin.readers(topic)
        view = await admin.view()
        of = {found.topic: None for found in readers}
        names = [found.name for found in view.topics if found.topic in of]
        return view, readers, tuple([await admin.topic_mark(name) for name in names])


@reader.command("forget")
def forget_reader(
    topic: _Topic,
    name: Annotated[str, typer.Argument(help="The reader's name, as in `varlog reader list`.")],
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
) -> None:
    """Forget a named reader, so that it no longer holds back trims."""
    _forget(target(cluster, data), "reader", topic, name)


# --- writers --------------------------------------------------------------------------------------------------


@writer.command("list")
def list_writers(
    topic: _OfTopic = None,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
    json_: JsonOption = False,
) -> None:
    """List named writers with their current batch, where it started in the log, and whether it is finished."""
    view, writers = run_async(_writers(target(cluster, data), topic))
    rows_json = [_writer_json(view, found) for found in writers]
    if json_:
        print_json(rows_json)
    elif rows_json:
        rows = [
            (
                one["topic"],
                found.name,
                found.batch,
                "finished" if found.finished else "in progress",
                found.begin,
                ", ".join(map(str, found.streams)),
                format_age(_now_us(), found.updated_us),
            )
            for one, found in zip(rows_json, writers, strict=True)
        ]
        print_table("", ("topic", "writer", "#batch", "state", "#above", "streams", "#updated"), rows)
    else:
        print("there are no named writers")


async def _writers(where: Target, topic: str | None) -> tuple[ClusterView, tuple[NamedWriter, ...]]:
    async with where.admin() as admin:
        writers = await admin.writers(topic)
        return await admin.view(), writers


@writer.command("forget")
def forget_writer(
    topic: _Topic,
    name: Annotated[str, typer.Argument(help="The writer's name, as in `varlog writer list`.")],
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
) -> None:
    """Forget a named writer. A job that still writes under this name would start over: stop it first."""
    _forget(target(cluster, data), "writer", topic, name)


def _writer_json(view: ClusterView, found: NamedWriter) -> dict[str, object]:
    """For programs."""
    topic = view.topic(found.topic)
    rows_json = {field: getattr(found, field) for field in found.__struct_fields__}
    return rows_json | {"topic": topic.name if topic else str(found.topic)}


# --- both -----------------------------------------------------------------------------------------------------


def _forget(where: Target, kind: Literal["reader", "writer"], topic: str, name: str) -> None:
    async def forget() -> None:
        async with where.admin() as admin:
            named: Sequence[NamedReader | NamedWriter]
            named = await (admin.readers(topic) if kind == "reader" else admin.writers(topic))
            if all(found.name != name for found in named):
                fail(f"topic {topic!r} has no {kind} {name!r}: see `varlog {kind} list`", FAILED)
            await (admin.forget_reader if kind == "reader" else admin.forget_writer)(topic, name)

    run_async(forget())
    print(f"{kind} {name} of {topic} is forgotten")


def _now_us() -> int:
    return time.time_ns() // 1000
