"""Python imports this by itself in every process with its directory on PYTHONPATH: profile_cluster.py puts it there.

A process whose command line matches VARLOG_PROFILE_MATCH writes a profile of its main thread (its event loop) into the
directory VARLOG_PROFILE when it ends cleanly. VARLOG_PROFILE_KIND: `sample`, `cprofile`, or `trace` (see trace_append.py).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Coroutine
from typing import Any

# Module, class, method; what to record before and after it; which argument is the message.
TRACE_POINTS = [
    ("varlog.rpc.tcp", "TcpConnection", "_post", "send ", "", 2),
    ("varlog.rpc.endpoint", "Endpoint", "_take_request", "receive ", "", 2),
    ("varlog.rpc.endpoint", "Endpoint", "_take_oneway", "receive ", "", 1),
    ("varlog.rpc.endpoint", "Endpoint", "_take_reply", "receive ", "", 2),
    ("varlog.storage.committed.log_store", "LogStore", "append", "write begins", "write ends", 0),
    ("varlog.metarepo.store.sqlite", "SqliteStore", "_commit", "commit begins", "commit ends", 0),
]


def _while_serving(begin: Callable[[], None], end: Callable[[], None]) -> None:
    """Call `begin` and `end` around the main coroutine: imports and the command line are not of interest."""
    import asyncio

    serve = asyncio.Runner.run

    def run(self: asyncio.Runner, main: Coroutine[Any, Any, Any], **options: Any) -> Any:
        begin()
        try:
            return serve(self, main, **options)
        finally:
            end()

    asyncio.Runner.run = run  # type: ignore[method-assign, assignment]


def _sample(path: str) -> None:
    import signal
    import time
    from collections import Counter
    from types import FrameType

    stacks: Counter[str] = Counter()
    used_s = 0.0

    def take(_: int, frame: FrameType | None) -> None:
        names = []
        while frame is not None:
            code = frame.f_code
            names.append(f"{code.co_qualname} ({os.path.basename(code.co_filename)}:{frame.f_lineno})")
            frame = None if code.co_qualname == "Runner.run" else frame.f_back
        stacks[";".join(reversed(names))] += 1

    def begin() -> None:
        nonlocal used_s
        used_s = time.process_time()
        signal.signal(signal.SIGPROF, take)
        signal.siginterrupt(signal.SIGPROF, False)
        # Counts processor time, not waiting: an idle process is never interrupted.
        signal.setitimer(signal.ITIMER_PROF, 0.002, 0.002)

    def end() -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        with open(path + ".stacks", "w") as file:
            file.write(f"{time.process_time() - used_s:.2f} s of processor time, all threads\n")
            file.writelines(f"{stack} {count}\n" for stack, count in stacks.most_common())

    _while_serving(begin, end)


def _cprofile(path: str) -> None:
    import cProfile

    profiler = cProfile.Profile()

    def end() -> None:
        profiler.disable()
        profiler.dump_stats(path + ".pstats")

    _while_serving(profiler.enable, end)


def _trace(path: str) -> None:
    """Note when each message leaves and arrives and when each write begins and ends, on the clock that all processes share."""
    import atexit
    import importlib.abc
    import importlib.machinery
    import time
    from collections.abc import Sequence
    from types import ModuleType

    events: list[tuple[int, str]] = []
    clock = time.monotonic_ns

    def noted(function: Callable[..., Any], before: str, after: str, argument: int) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            what = type(arguments[argument]).__name__ if argument else ""
            if before:
                events.append((clock(), before + what))
            try:
                return function(*arguments, **options)
            finally:
                if after:
                    events.append((clock(), after + what))

        return call

    def patch(module: ModuleType) -> None:
        for name, owner, method, before, after, argument in TRACE_POINTS:
            if name == module.__name__:
                found = getattr(module, owner)
                setattr(found, method, noted(getattr(found, method), before, after, argument))

    class Finder(importlib.abc.MetaPathFinder):
        """Patches the modules named above right after they are loaded."""

        def find_spec(
            self, name: str, where: Sequence[str] | None, target: ModuleType | None = None
        ) -> importlib.machinery.ModuleSpec | None:
            if all(name != point[0] for point in TRACE_POINTS):
                return None
            spec = importlib.machinery.PathFinder.find_spec(name, where, target)
            if spec is not None and spec.loader is not None:
                load = spec.loader.exec_module

                def exec_module(module: ModuleType) -> None:
                    load(module)
                    patch(module)

                spec.loader.exec_module = exec_module  # type: ignore[method-assign]
            return spec

    def write() -> None:
        with open(path + ".trace", "w") as file:
            file.writelines(f"{at} {what}\n" for at, what in events)

    sys.meta_path.insert(0, Finder())
    atexit.register(write)


def _begin() -> None:
    directory = os.environ.get("VARLOG_PROFILE")
    command = " ".join(sys.orig_argv)
    if not directory or not re.search(os.environ.get("VARLOG_PROFILE_MATCH", "."), command):
        return
    path = os.path.join(directory, str(os.getpid()))
    with open(path + ".command", "w") as file:
        file.write(command)
    kinds = {"cprofile": _cprofile, "sample": _sample, "trace": _trace}
    kinds[os.environ.get("VARLOG_PROFILE_KIND", "sample")](path)


_begin()
