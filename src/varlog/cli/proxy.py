"""`varlog proxy`: serve HTTP, WebSocket and the dashboard until SIGTERM or SIGINT."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from varlog.cli.output import WRONG_USAGE, fail
from varlog.cli.serve import run_service
from varlog.cli.target import DEFAULT_CLUSTER, ClusterOption, DataOption, target
from varlog.model.limits import MIB

# The packages of the extra `proxy`, by import name. Checked before anything is started.
_PACKAGES = (
    "fastapi",
    "starlette",
    "pydantic",
    "uvicorn",
    "httptools",
    "websockets",
    "prometheus_client",
    "pyarrow",
)
INSTALL = "pip install 'varlog[proxy]'"
DEFAULT_LISTEN = "127.0.0.1:7180"
_LIMITS = "Limits"


def missing_packages() -> list[str]:
    """Packages that the proxy needs and that are not installed."""
    return [name for name in _PACKAGES if find_spec(name) is None]


def proxy(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on; port 0 picks a free port.")
    ] = DEFAULT_LISTEN,
    cluster: ClusterOption = DEFAULT_CLUSTER,
    data: DataOption = None,
    public_name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:PORT]",
            help="Host name or address by which clients reach this proxy, in addition to localhost and the listening addresses. "
            "Repeat the option for several; requests for any other host are refused.",
        ),
    ] = None,
    body_max: Annotated[
        float | None,
        typer.Option(
            metavar="MIB",
            min=0.001,
            help="Maximum size of a request body, MiB (default: a full batch).",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    page_max: Annotated[
        int | None,
        typer.Option(
            min=1, help="Maximum number of entries per page of a range [10000].", rich_help_panel=_LIMITS
        ),
    ] = None,
    subscriptions_max: Annotated[
        int | None,
        typer.Option(
            min=1, help="Maximum number of concurrent subscriptions [4096].", rich_help_panel=_LIMITS
        ),
    ] = None,
    appends_max: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of appends in flight [1024].", rich_help_panel=_LIMITS),
    ] = None,
    append_mib_max: Annotated[
        float | None,
        typer.Option(
            metavar="MIB",
            min=0.001,
            help="Maximum total size of appends in flight, MiB [64].",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    connections_max: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of connections [8192].", rich_help_panel=_LIMITS)
    ] = None,
    client_share: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=1.0,
            help="Largest share of connections, subscriptions and appends for one client address [0.75].",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.001,
            help="Default deadline of a request, seconds [10].",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    timeout_max: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.001,
            help="Longest deadline that a request may ask for, seconds [60].",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    slow: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.001,
            help="Drop a subscriber that reads nothing for this long, seconds [30].",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    log_level: Annotated[str, typer.Option(help="Log level: debug, info, warning or error.")] = "info",
) -> None:
    """Serve a log over HTTP and WebSocket, with a dashboard at /, until Ctrl-C. Prints `ready HOST:PORT`."""
    where = target(cluster, data)
    if missing := missing_packages():
        fail(f"the proxy needs {', '.join(missing)}: {INSTALL}")
    limits = {
        "body_bytes_max": _bytes(body_max),
        "page_entries_max": page_max,
        "page_entries": min(page_max, 1_000) if page_max is not None else None,
        "subscriptions_max": subscriptions_max,
        "appends_max": appends_max,
        "append_bytes_max": _bytes(append_mib_max),
        "connections_max": connections_max,
        "client_share": client_share,
        "timeout_s": timeout,
        "timeout_s_max": timeout_max,
        "slow_s": slow,
    }
    _serve(listen, where.cluster, where.data, public_name or [], limits, log_level)


def _bytes(mib: float | None) -> int | None:
    return None if mib is None else max(1, int(mib * MIB))


def _serve(
    listen: str,
    cluster: str,
    data: Path | None,
    public_names: list[str],
    limits: dict[str, int | float | None],
    log_level: str,
) -> None:
    from varlog.model.errors import StartupError
    from varlog.proxy.header_rules import AcceptedNames
    from varlog.proxy.limits import ProxyLimits
    from varlog.proxy.server import ProxyConfig, ProxyService

    if data is not None and (data / "cluster.json").exists():
        fail(
            StartupError(f"{data} belongs to a cluster of processes: start it with `varlog up --data {data}`")
        )
    chosen = {name: value for name, value in limits.items() if value is not None}
    try:
        names = AcceptedNames(public_names)
        allowed = ProxyLimits(**chosen)  # type: ignore[arg-type]  # counts are whole numbers, as their options are
    except ValueError as error:
        fail(error, WRONG_USAGE)
    config = ProxyConfig(listen, cluster, data, allowed, names)
    run_service("varlog proxy", log_level, lambda: ProxyService(config))


def serve_proxy() -> None:
    """The same command, run as a child process of `varlog up`."""
    command = typer.Typer(add_completion=False)
    command.command()(proxy)
    command(prog_name="varlog proxy", args=sys.argv[1:])
