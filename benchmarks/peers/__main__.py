"""`python -m benchmarks.peers`: measures varlog and its peers by turns and prints the tables; a full run writes them into docs/."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import uvloop  # noqa: E402 - of this tree, wherever it was started

from benchmarks.peers.contract import PeerMissing  # noqa: E402
from benchmarks.peers.run import measured  # noqa: E402
from benchmarks.peers.samples import Findings, loaded, merged  # noqa: E402
from benchmarks.peers.server import ServerFailed  # noqa: E402
from benchmarks.peers.systems import SYSTEMS, chosen  # noqa: E402
from benchmarks.peers.tables import section  # noqa: E402
from benchmarks.peers.workloads import WORKLOADS, Timing, chosen_workloads  # noqa: E402
from varlog.model.errors import StartupError  # noqa: E402
from varlog.model.limits import MIB  # noqa: E402

PASSES, QUICK_PASSES, DUELS = 3, 1, 2
QUICK = Timing(seconds=0.3, warm_up_s=0.1, read_bytes=4 * MIB)


def main() -> None:
    arguments = _parser().parse_args()
    if arguments.list:
        _list()
        return
    try:
        findings = _findings(arguments)
    except (PeerMissing, ServerFailed, StartupError, ValueError, OSError) as error:
        sys.exit(f"bench-peers: {error}")
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(
            "bench-peers: interrupted; servers and data are gone; --json has the passes that were complete"
        )
    _write(findings, arguments.json)
    partial = arguments.quick or arguments.only or arguments.workload or arguments.merge
    if arguments.render or not (partial or findings.failures):
        from benchmarks.peers.render import render

        render(findings)
    sys.stdout.write(section(findings) + "\n")
    if findings.failures:
        sys.exit("bench-peers: not measured: " + "; ".join(findings.failures))


def _findings(arguments: argparse.Namespace) -> Findings:
    if arguments.merge:
        return merged([loaded(path) for path in arguments.merge])
    timing = QUICK if arguments.quick else Timing()
    if arguments.seconds is not None:
        timing = Timing(arguments.seconds, timing.warm_up_s, timing.read_bytes)
    return uvloop.run(_measured(arguments, timing))


async def _measured(arguments: argparse.Namespace, timing: Timing) -> Findings:
    """Ctrl-C and an end by another process cancel it: servers are stopped and data removed on the way out."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    if task is not None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
    return await measured(
        chosen(arguments.only),
        chosen_workloads(arguments.workload),
        timing,
        passes=arguments.passes or (QUICK_PASSES if arguments.quick else PASSES),
        data=arguments.data,
        say=_say,
        duels=arguments.duels if arguments.duels is not None else 0 if arguments.quick else DUELS,
        keep=lambda findings: _write(findings, arguments.json),
    )


def _write(findings: Findings, path: Path | None) -> None:
    if path is not None:
        path.write_text(findings.as_json(), "utf-8")


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _list() -> None:
    for system in SYSTEMS:
        sys.stdout.write(f"{system.name:24} {system.title}: {system.setting}; client: {system.client}\n")
    for workload in WORKLOADS:
        sys.stdout.write(f"{workload.name:24} {workload.title}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench-peers", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="one short pass: does everything work? Figures are rough"
    )
    parser.add_argument("--seconds", type=float, help="of each measurement (1)")
    parser.add_argument("--passes", type=int, help=f"how often everything is measured ({PASSES})")
    parser.add_argument(
        "--duels", type=int, help=f"rounds more in each pass of what decides a target ({DUELS})"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="SYSTEM", help="only these, by name or its beginning"
    )
    parser.add_argument("-w", "--workload", action="append", default=[], help="only these workloads")
    parser.add_argument(
        "--data", type=Path, default=Path(tempfile.gettempdir()), help="a directory on the disk to measure"
    )
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    parser.add_argument(
        "--merge", type=Path, nargs="+", metavar="FILE", help="measure nothing: take these files of --json"
    )
    parser.add_argument(
        "--render", action="store_true", help="write the section and the plots of benchmarks/journal.md"
    )
    parser.add_argument("--list", action="store_true", help="the systems and the workloads")
    return parser


if __name__ == "__main__":
    main()
