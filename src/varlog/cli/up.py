"""`varlog up`: run a supervised cluster on this machine until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from varlog.cli.output import WRONG_USAGE, fail, run_async
from varlog.cli.target import DEFAULT_CLUSTER
from varlog.model.cluster import Ordering

if TYPE_CHECKING:
    from varlog.localcluster.plan import ClusterPlan
    from varlog.localcluster.supervisor import Supervisor


def up(
    nodes: Annotated[int, typer.Option(min=1, help="Number of storage nodes.")] = 3,
    streams: Annotated[int, typer.Option(min=1, help="Number of log streams of a new topic.")] = 2,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Number of replicas per log stream [3, or the number of nodes].")
    ] = None,
    data: Annotated[Path, typer.Option(help="Directory for data and logs, created if missing.")] = Path(
        "varlog-data"
    ),
    port: Annotated[
        int,
        typer.Option(
            min=1,
            max=65_000,
            help="Base port: repository PORT, manager PORT+1, nodes PORT+10…, then the sequencer; proxy PORT+80.",
        ),
    ] = 7100,
    topic: Annotated[str, typer.Option(help="Topic to create if it does not exist.")] = "default",
    ordering: Annotated[
        Ordering,
        typer.Option(help="Ordering of that topic: committed by the repository, or assigned by a sequencer."),
    ] = Ordering.COMMITTED,
    replicated: Annotated[
        bool,
        typer.Option(
            "--replicated", help="Run three metadata repositories on three etcd members, at PORT+2 to PORT+9."
        ),
    ] = False,
    proxy_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65_535,
            help="Port of the HTTP proxy and its dashboard (default: PORT+80, or a free port).",
        ),
    ] = None,
    proxy: Annotated[bool, typer.Option("--proxy/--no-proxy", help="Also run the HTTP proxy.")] = True,
) -> None:
    """Run a cluster on this machine until Ctrl-C. The data is kept, and the next `varlog up` continues with it."""
    from varlog.localcluster.plan import ClusterPlan, ports_from, replicated_ports_from, sequencer_port_from

    copies = min(3, nodes) if replicas is None else replicas
    if copies > nodes:
        fail(f"{copies} replicas need {copies} storage nodes: pass --nodes {copies}", WRONG_USAGE)
    if port + 10 + nodes > 65_535:
        fail(f"--port {port} leaves too few ports for {nodes} nodes: choose a lower one", WRONG_USAGE)
    plan = ClusterPlan(
        data.absolute(),
        ports_from(port, nodes),
        replicas=copies,
        streams=streams,
        replicated_ports=replicated_ports_from(port) if replicated else (),
        sequencer_port=sequencer_port_from(port, nodes),
        proxy_port=_proxy_port(proxy_port, port, nodes) if proxy else None,
    )
    os.umask(0o077)  # of its children too: logs and etcd's files are readable by this user only
    run_async(_up(plan, topic, ordering))


def _proxy_port(asked: int | None, port: int, nodes: int) -> int | None:
    """The requested port, else the usual one, else any free one: a taken proxy port must not keep the cluster from starting. None,
    with a message, if the proxy is not installed."""
    from varlog.cli.proxy import INSTALL, missing_packages
    from varlog.localcluster.plan import proxy_port_from
    from varlog.localcluster.ports import free_ports, is_free

    if missing := missing_packages():
        _say(f"without the HTTP proxy and its dashboard, which need {', '.join(missing)}: {INSTALL}")
        return None
    if asked is not None:
        return asked
    usual = proxy_port_from(port, nodes)
    return usual if usual <= 65_535 and is_free(usual) else free_ports(1)[0]


async def _up(plan: ClusterPlan, topic: str, ordering: Ordering) -> None:
    from varlog.localcluster.etcd import find_etcd
    from varlog.localcluster.supervisor import Supervisor

    stop_requested = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop_requested.set)
    if plan.replicated:
        find_etcd()  # before anything is created
    supervisor = Supervisor(plan, say=_say)
    _say(f"starting a cluster of {plan.nodes} storage nodes in {plan.data}")
    starting = loop.create_task(_start(supervisor, topic, ordering), name="start")
    stopping = loop.create_task(stop_requested.wait(), name="wait for a signal")
    try:
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            _print_usage(plan, topic)
            await stopping
        _say("stopping")
    finally:
        for task in (starting, stopping):
            task.cancel()
        await asyncio.wait([starting, stopping])
        await supervisor.stop()
    _say("stopped; the data is kept")


async def _start(supervisor: Supervisor, topic: str, ordering: Ordering) -> None:
    from varlog.localcluster.wait import ensure_topic

    await supervisor.start()
    await ensure_topic(supervisor.plan, topic, ordering=ordering, say=_say)


def _say(what: str) -> None:
    print(f"varlog up: {what}", file=sys.stderr, flush=True)


def _etcd_line(plan: ClusterPlan) -> str:
    return f"\n  etcd                 {plan.etcd.store}" if plan.replicated else ""


def _proxy_line(plan: ClusterPlan) -> str:
    return f"\n  proxy                http://{plan.proxy}" if plan.proxy else ""


def _browser_lines(plan: ClusterPlan, topic: str) -> str:
    """How to use the proxy."""
    if not plan.proxy:
        return ""
    entries = f"http://{plan.proxy}/v1/topics/{topic}/entries"
    return f"""From a browser:

  open http://{plan.proxy}

Over HTTP:

  curl -d 'hello' -H 'Content-Type: text/plain' {entries}
  curl {entries}

"""


def _print_usage(plan: ClusterPlan, topic: str) -> None:
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
