"""A worker that runs on many machines and is active on one.

The leader does the jobs, the others stand by.

    python examples/leader_worker.py                                            the story below, on a cluster of its own
    python examples/leader_worker.py --cluster 127.0.0.1:7100 --name worker-1   one worker, on an existing cluster

The story: three workers start, one of them is elected and does job after job. It is stopped in its tracks
(SIGSTOP), as by a long pause: another one takes over, and continues with the next job. The first one wakes up, finds that it
leads no more, and stands by. Then the leader is killed (kill -9), and the next one takes over. In the end every job was done
once, in order.

How: the term of a leader is a position in the log, larger than every term before. A new leader first writes its term into the
topic of jobs. Every reader of the topic rejects what comes after that with an older term: a leader that was paused and wakes
up too late can do no harm, and the new one knows exactly which jobs are done.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import varlog
from varlog import aio
from varlog.recipes import Election, FencedResource, Leader, Leadership, LockLost, StaleToken

TTL_S = 2.0  # a leader without a heartbeat for this long is replaced
JOB_S = 0.1


# --- The worker -----------------------------------------------------------------------------------------------------------


async def work(cluster: str, name: str) -> None:
    """One worker: stands by until it is elected, does the jobs until it is no longer the leader, and repeats."""
    async with (
        aio.connect(cluster, topic="elections", create=True) as elections,
        aio.connect(cluster, topic="jobs", create=True) as jobs,
        Election.open(elections, name="worker", candidate=name, ttl_s=TTL_S) as election,
    ):
        while True:
            try:
                async with election.leading() as leadership:  # the body is cancelled when it leads no more
                    print(f"{name} leads in term {leadership.term}", flush=True)
                    await lead(jobs, leadership, name)
            except LockLost:
                print(f"{name} leads no more", flush=True)


async def lead(jobs: aio.Log, leadership: Leadership, name: str) -> None:
    """From this position on nothing of an older term counts, so the jobs done up to here are all of them."""
    begun = await jobs.append(json.dumps({"term": leadership.term}).encode())
    done = await jobs_done(jobs, begun.glsn)
    number = len(done)
    print(f"{name} continues after job {number}", flush=True)
    while True:
        number += 1
        await asyncio.sleep(JOB_S)  # the job itself
        leadership.check()
        await jobs.append(json.dumps({"term": leadership.term, "job": number, "by": name}).encode())


async def jobs_done(jobs: aio.Log, until: varlog.GLSN) -> list[dict[str, Any]]:
    """The jobs in the topic, without those of leaders that had lost the leadership when they wrote them."""
    fence, done = FencedResource("the topic of jobs"), []
    if until:
        async for entry in jobs.subscribe(1, until + 1):
            written = json.loads(entry.data)
            try:
                fence.admit(written["term"])
            except StaleToken as stale:
                print("refused:", stale, flush=True)
                continue
            if "job" in written:
                done.append(written)
    return done


# --- The story ------------------------------------------------------------------------------------------------------------


async def story() -> None:
    with tempfile.TemporaryDirectory(prefix="varlog-leader-") as directory, own_cluster(directory) as address:
        print("a cluster runs at", address, flush=True)
        workers = {name: start_worker(address, name) for name in ("worker-1", "worker-2", "worker-3")}
        try:
            async with asyncio.timeout(120):
                await hurt(workers, address)
        finally:
            for worker in workers.values():
                worker.kill()
                worker.wait()
    print("done", flush=True)


async def hurt(workers: dict[str, subprocess.Popen[bytes]], address: str) -> None:
    async with (
        aio.connect(address, topic="elections", create=True) as elections,
        aio.connect(address, topic="jobs", create=True) as jobs,
        Election.open(elections, name="worker") as election,  # only to observe the leader
    ):
        first = await next_leader(election, term=0)
        await wait_jobs(jobs, first, 5)

        print(f"--- {first.candidate} is stopped in its tracks", flush=True)
        workers[first.candidate].send_signal(signal.SIGSTOP)
        second = await next_leader(election, term=first.term)
        await wait_jobs(jobs, second, 5)
        print(f"--- {first.candidate} wakes up", flush=True)
        workers[first.candidate].send_signal(signal.SIGCONT)

        print(f"--- {second.candidate} is killed", flush=True)
        workers[second.candidate].kill()
        third = await next_leader(election, term=second.term)
        await wait_jobs(jobs, third, 5)
        account(await jobs_done(jobs, await jobs.tail()))


def account(done: list[dict[str, Any]]) -> None:
    assert [job["job"] for job in done] == list(range(1, len(done) + 1)), "each job once, in order"
    terms = {job["term"]: job["by"] for job in done}
    assert list(terms) == sorted(terms), "and each leader in a later term"
    print(f"{len(done)} jobs were done, each once:", flush=True)
    for term, by in terms.items():
        print(f"  {sum(job['term'] == term for job in done)} by {by} in term {term}", flush=True)


async def next_leader(election: Election, term: int) -> Leader:
    async with aclosing(election.observe()) as leaders:
        async for leader in leaders:
            if leader is not None and leader.term > term:
                return leader
    raise AssertionError("observe() does not end")


async def wait_jobs(jobs: aio.Log, leader: Leader, count: int) -> None:
    """Wait until this leader has done this many."""
    async for entry in jobs.subscribe(1):
        written = json.loads(entry.data)
        count -= written["term"] == leader.term and "job" in written
        if not count:
            return


def start_worker(address: str, name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, "--cluster", address, "--name", name])


@contextmanager
def own_cluster(directory: str) -> Iterator[str]:
    """Three storage nodes, a manager and a metadata repository on this machine, one process each."""
    port = next(port for port in range(7500 + os.getpid() % 50 * 20, 9900, 20) if free(port))
    command = [sys.executable, "-m", "varlog.cli", "up", "--no-proxy", "--port", str(port)]
    up = subprocess.Popen([*command, "--data", f"{directory}/data"], stdout=subprocess.PIPE, text=True)
    try:
        assert up.stdout is not None
        while "ready" not in (line := up.stdout.readline()):
            assert line, "the cluster did not start"
        yield f"127.0.0.1:{port}"
    finally:
        up.terminate()
        up.communicate()


def free(port: int) -> bool:
    """Whether no process listens on any of the ports that `varlog up --port` uses."""
    for own in (port, port + 1, *range(port + 10, port + 13)):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", own)) == 0:
                return False
    return True


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="A worker that runs on many machines and is active on one.")
    options.add_argument("--cluster", help="the address of an existing cluster, for one worker")
    options.add_argument("--name", default=f"worker-{os.getpid()}")
    given = options.parse_args()
    try:
        asyncio.run(work(given.cluster, given.name) if given.cluster else story())
    except KeyboardInterrupt:
        pass
