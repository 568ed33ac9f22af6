"""`varlog up`: a whole cluster on this machine, supervised, until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from varlog.cli.output import WRONG_USAGE, fail, run
from varlog.cli.target import DEFAULT_CLUSTER
from varlog.model.cluster import Ordering

if TYPE_CHECKING:
    from varlog.cli.cluster_plan import ClusterPlan
    from varlog.cli.supervisor import Supervisor
    from varlog.client.admin import Admin
    from varlog.rpc.messages import GetClusterStatusReply

READY_TIMEOUT_S = 60.0
STREAMS_TIMEOUT_S = 10.0
LOOK_S = 0.05


def up(
    nodes: Annotated[int, typer.Option(min=1, help="Storage nodes.")] = 3,
    streams: Annotated[int, typer.Option(min=1, help="Log streams of a new topic.")] = 2,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Copies of a log stream [3, or all nodes].")
    ] = None,
    data: Annotated[Path, typer.Option(help="Where everything is kept; made if it is not there.")] = Path(
        "varlog-data"
    ),
    port: Annotated[
        int,
        typer.Option(
            min=1,
            max=65_000,
            help="Of the metadata repository; the manager has the next, nodes PORT+10 …, then the sequencer",
        ),
    ] = 7100,
    topic: Annotated[str, typer.Option(help="A topic that is made if it is not there.")] = "default",
    ordering: Annotated[
        Ordering, typer.Option(help="Of that topic; see docs/orderings.md.")
    ] = Ordering.COMMITTED,
    replicated: Annotated[
        bool,
        typer.Option(
            "--replicated", help="Three metadata repositories over three etcd members, at PORT+2 to PORT+9."
        ),
    ] = False,
    proxy_port: Annotated[
        int | None,
        typer.Option(min=1, max=65_535, help="Of the HTTP proxy and its dashboard [PORT+80, or a free one]."),
    ] = None,
    proxy: Annotated[bool, typer.Option("--proxy/--no-proxy", help="Run the HTTP proxy, too.")] = True,
) -> None:
    """Run a cluster on this machine until Ctrl-C; the data is kept, and the next `varlog up` goes on with
    it."""
    from varlog.cli.cluster_plan import ClusterPlan, ports_from, replicated_ports_from, sequencer_port_from

    copies = min(3, nodes) if replicas is None else replicas
    if copies > nodes:
        fail(f"{copies} replicas need {copies} storage nodes: start more with --nodes {copies}", WRONG_USAGE)
    if port + 10 + nodes > 65_535:
        fail(f"--port {port} leaves no room for {nodes} nodes: choose a smaller one", WRONG_USAGE)
    plan = ClusterPlan(
        data.absolute(),
        ports_from(port, nodes),
        replicas=copies,
        streams=streams,
        replicated_ports=replicated_ports_from(port) if replicated else (),
        sequencer_port=sequencer_port_from(port, nodes),
        proxy_port=_proxy_port(proxy_port, port, nodes) if proxy else None,
    )
    os.umask(0o077)  # also of its children: logs and etcd's files are for their user alone
    run(_up(plan, topic, ordering))


def _proxy_port(asked: int | None, port: int, nodes: int) -> int | None:
    """The port that was asked for, else the usual one, else any: who only wants a log shall not miss it for its proxy. None, and a
    word about it, where the proxy is not installed."""
    from varlog.cli.cluster_plan import proxy_port_from
    from varlog.cli.ports import free_ports, is_free
    from varlog.cli.proxy import INSTALL, missing_packages

    if missing := missing_packages():
        _say(f"without the HTTP proxy and its dashboard, which need {', '.join(missing)}: {INSTALL}")
        return None
    if asked is not None:
        return asked
    usual = proxy_port_from(port, nodes)
    return usual if usual <= 65_535 and is_free(usual) else free_ports(1)[0]


async def _up(plan: ClusterPlan, topic: str, ordering: Ordering) -> None:
    from varlog.cli.etcd import find_etcd
    from varlog.cli.supervisor import Supervisor

    told_to_stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, told_to_stop.set)
    if plan.replicated:
        find_etcd()  # before anything is made
    supervisor = Supervisor(plan, say=_say)
    _say(f"starting a cluster of {plan.nodes} storage nodes in {plan.data}")
    starting = loop.create_task(_start(supervisor, topic, ordering), name="start")
    stopping = loop.create_task(told_to_stop.wait(), name="wait for a signal")
    try:
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            _tell_how(plan, topic)
            await stopping
        _say("stopping")
    finally:
        for task in (starting, stopping):
            task.cancel()
        await asyncio.wait([starting, stopping])
        await supervisor.stop()
    _say("stopped; the data is kept")


async def _start(supervisor: Supervisor, topic: str, ordering: Ordering) -> None:
    await supervisor.start()
    await make_topic(supervisor.plan, topic, ordering=ordering, say=_say)


async def make_topic(
    plan: ClusterPlan,
    topic: str,
    *,
    ordering: Ordering = Ordering.COMMITTED,
    stripe_size: int = 0,
    say: Callable[[str], None] = print,
) -> None:
    """Wait until every node is registered and alive, make the topic, and wait until all streams run.

    One stream that does not come back, with a damaged replica perhaps, is told of, and keeps nobody from the
    others.
    """
    from varlog.model.errors import PreconditionFailed, Unavailable

    loop = asyncio.get_running_loop()
    silent: list[int] = []
    await wait_nodes(plan)
    patience = loop.time() + STREAMS_TIMEOUT_S
    async with _looking(plan) as look:
        while True:
            try:
                seen = await look.admin.status()
                silent = _not_running(seen)
                if seen.view.topic_named(topic) is None:
                    await look.admin.create_topic(
                        topic,
                        streams=plan.streams,
                        replicas=plan.replicas,
                        ordering=ordering,
                        stripe_size=stripe_size,
                    )
                elif not silent or loop.time() > patience:
                    break
            except (PreconditionFailed, Unavailable) as error:
                # On a busy machine a node that answered a moment ago may not, or a stream takes its time: look again.
                look.why = f" ({error})"
            await asyncio.sleep(LOOK_S)
    if silent:
        say(f"log streams {silent} do not run: see `varlog status --cluster {plan.repository}`")


async def wait_nodes(plan: ClusterPlan) -> None:
    """Until every node is registered and alive: processes that are ready may not have met yet."""
    from varlog.model.errors import Unavailable

    async with _looking(plan) as look:
        while True:
            try:
                if sum(health.alive for health in (await look.admin.status()).nodes) >= plan.nodes:
                    return
            except Unavailable as error:
                look.why = f" ({error})"
            await asyncio.sleep(LOOK_S)


@dataclass
class _Look:
    """`why`: what stood in the way the last time."""

    admin: Admin
    why: str = ""


@asynccontextmanager
async def _looking(plan: ClusterPlan) -> AsyncIterator[_Look]:
    """Somebody looks at the cluster again and again; StartupError if that takes too long."""
    from varlog.cli.target import Target
    from varlog.model.errors import StartupError

    why = ""
    try:
        async with asyncio.timeout(READY_TIMEOUT_S), Target(plan.repository).admin() as admin:
            look = _Look(admin)
            try:
                yield look
            finally:
                why = look.why
    except TimeoutError:
        raise StartupError(
            f"the cluster did not come up within {READY_TIMEOUT_S:g} s{why}: see the logs in {plan.data / 'logs'}"
        ) from None


def _not_running(seen: GetClusterStatusReply) -> list[int]:
    from varlog.model.cluster import StreamState

    return [found.log_stream for found in seen.view.streams if found.state is not StreamState.RUNNING]


def _say(what: str) -> None:
    print(f"varlog up: {what}", file=sys.stderr, flush=True)


def _etcd_line(plan: ClusterPlan) -> str:
    return f"\n  its etcd             {plan.etcd.store}" if plan.replicated else ""


def _proxy_line(plan: ClusterPlan) -> str:
    return f"\n  proxy                http://{plan.proxy}" if plan.proxy else ""


def _browser_lines(plan: ClusterPlan, topic: str) -> str:
    """What to do with the proxy."""
    if not plan.proxy:
        return ""
    entries = f"http://{plan.proxy}/v1/topics/{topic}/entries"
    return f"""From a browser:

  open http://{plan.proxy}

Over HTTP:

  curl -d 'hello' -H 'Content-Type: text/plain' {entries}
  curl {entries}

"""


def _tell_how(plan: ClusterPlan, topic: str) -> None:
    cluster = "" if plan.repository == DEFAULT_CLUSTER else f" --cluster {plan.repository}"
    print(
        f"""
The cluster is ready.

  metadata repository  {", ".join(plan.repositories)}{_etcd_line(plan)}
  manager              {plan.manager}
  storage nodes        {", ".join(plan.node_addresses)}
  sequencer            {plan.sequencer}{_proxy_line(plan)}
  data and logs        {plan.data}

{_browser_lines(plan, topic)}From a shell:

  varlog append{cluster} {topic} 'hello'
  varlog tail{cluster} -f {topic}
  varlog status{cluster}

From Python:

  import varlog
  with varlog.connect("{plan.repository}", topic="{topic}") as log:
      at = log.append(b"hello")
      print(log.read(at.glsn).data)

Ctrl-C stops it; the data is kept.
""",
        flush=True,
    )
