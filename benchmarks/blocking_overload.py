"""Goodput of a blocking log that many threads overload.

    python benchmarks/blocking_overload.py [--threads 2048] [--capacity 5000] [--callers paced] [--offered 1 2 4]

The log is one that serves `--capacity` appends per second: what is measured is what the client does with its threads, and no disk.
Callers that are `paced` offer multiples of the capacity, each thread one append at a time. `polite` ones wait after a refusal
for as long as it says, `spinning` ones do not wait: both offer what they can. Each append has a deadline of one second.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import threading
import time

import varlog
from varlog.client.append_rules import InflightBatch
from varlog.client.blocking import Log
from varlog.model.batch import parse_header
from varlog.model.entry import Position
from varlog.model.errors import Rejected, VarlogError
from varlog.model.ids import LogStreamID
from varlog.model.lsn import GLSN, LLSN

DEADLINE_S, WARM_UP_S, BATCH_S = 1.0, 1.0, 0.002


def serve_slowly(log: Log, capacity: float) -> None:
    """Let one batch after the other be answered at this rate."""
    free = asyncio.Lock()

    async def deliver(inflight: InflightBatch) -> Position:
        inflight.attempt = True  # type: ignore[assignment] # only that there is one
        async with free:
            await asyncio.sleep(BATCH_S + parse_header(inflight.batch, signed=False).count / capacity)
        return Position(GLSN(1), LLSN(1), LogStreamID(1))

    log._log._appender._sender.deliver = deliver  # type: ignore[method-assign]


def offered(log: Log, args: argparse.Namespace, multiple: float) -> str:
    """One point: `--seconds` of it are counted, after a warm-up."""
    begin = time.perf_counter() + WARM_UP_S
    end = begin + args.seconds
    ended: list[tuple[int, int, int]] = []

    def caller(number: int) -> None:
        rng, in_time, refused, other = random.Random(number), 0, 0, 0
        time.sleep(rng.random() * WARM_UP_S / 2)
        while (started := time.perf_counter()) < end:
            counts = started >= begin
            try:
                log.append(bytes(1000), timeout_s=DEADLINE_S)
                in_time += counts and time.perf_counter() - started <= DEADLINE_S
            except Rejected as refusal:
                refused += counts
                if args.callers == "polite":
                    time.sleep(rng.uniform(1, 2) * getattr(refusal, "retry_after_s", 0.01))
            except VarlogError:
                other += counts
            if args.callers == "paced":
                time.sleep(rng.expovariate(multiple * args.capacity / args.threads))
        ended.append((in_time, refused, other))

    threads = [threading.Thread(target=caller, args=(number,)) for number in range(args.threads)]
    used = time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    used = (time.process_time() - used) / (WARM_UP_S + args.seconds)
    in_time, refused, other = (sum(column) / args.seconds for column in zip(*ended, strict=True))
    return (
        f"{in_time:.0f}/s in time, {refused:.0f}/s refused, {other:.0f}/s late or unknown, {used:.2f} cores"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2048)
    parser.add_argument("--capacity", type=float, default=5000.0, help="appends per second that are served")
    parser.add_argument("--callers", choices=["paced", "polite", "spinning"], default="paced")
    parser.add_argument("--offered", type=float, nargs="+", default=[1.0, 2.0, 4.0])
    parser.add_argument("--seconds", type=float, default=3.0)
    args = parser.parse_args()
    threading.stack_size(256 * 1024)
    for multiple in args.offered if args.callers == "paced" else [0.0]:
        with tempfile.TemporaryDirectory() as directory, varlog.open(directory, topic="overload") as log:
            log.append(b"first")
            serve_slowly(log, args.capacity)
            name = f"{multiple:g} x" if multiple else args.callers
            sys.stdout.write(f"{name}, {args.threads} threads: {offered(log, args, multiple)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
