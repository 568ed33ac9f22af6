"""A bank whose books are a log.

Every branch has all accounts in memory, and no cent is lost when one of them dies.

    python examples/replicated_bank.py                                             the story below, on a cluster of its own
    python examples/replicated_bank.py --cluster 127.0.0.1:7100 --branch branch-1  one branch, on an existing cluster

The story: ten accounts have 100 each. Three branches, one process each, transfer money as fast as they can, each transfer
in a serializable transaction. An auditor adds up all accounts repeatedly: the sum never changes. One branch is killed
(kill -9) in the middle of its work, and the sum stays the same. The books are saved as a snapshot and the log is trimmed; a
new branch starts from the snapshot, and has the same books. Last, two people with joint accounts overdraw them
concurrently: possible under snapshot isolation (write skew), impossible under serializable.

How: a transaction is one entry of the log. Every branch decides alike, at that position of the order, whether it commits.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path

from varlog import aio
from varlog.recipes import Conflict, KeyValue, TopicSnapshots, Transaction, Transactions

ACCOUNTS = [f"account/{number}" for number in range(10)]
OPENING_BALANCE = 100
TRANSFERS = 100


@asynccontextmanager
async def books_of(cluster: str) -> AsyncIterator[KeyValue]:
    """All accounts, in this process: a replica of the key/value store in the topic `bank`."""
    async with (
        aio.connect(cluster, topic="bank", create=True) as log,
        aio.connect(cluster, topic="bank-snapshots", create=True) as saved,
        KeyValue.open(log, name="books", snapshots=TopicSnapshots(saved)) as books,
    ):
        yield books


# --- A branch -------------------------------------------------------------------------------------------------------------


class NotEnough(Exception):
    """The account does not have that much."""


def transfer(bank: Transaction, payer: str, payee: str, amount: int, receipt: str) -> None:
    """Two accounts and a receipt, all or nothing."""
    if balance(bank, payer) < amount:
        raise NotEnough(payer)
    bank.put(payer, b"%d" % (balance(bank, payer) - amount))
    bank.put(payee, b"%d" % (balance(bank, payee) + amount))
    bank.put(receipt, f"{payer} to {payee}: {amount}".encode())


def balance(bank: Transaction, account: str) -> int:
    return int(bank.get(account) or b"0")


async def work(cluster: str, branch: str) -> None:
    """Transfer between random accounts, forever."""
    async with books_of(cluster) as books:
        transactions, number = Transactions(books), 0
        while True:
            number += 1
            payer, payee = random.sample(ACCOUNTS, 2)
            amount, receipt = random.randrange(1, 50), f"receipt/{branch}/{number:06}"
            action = partial(transfer, payer=payer, payee=payee, amount=amount, receipt=receipt)
            try:
                await transactions.run(
                    action, retries=1000
                )  # retried if another branch changed one of them first
            except NotEnough:
                continue


# --- The story ------------------------------------------------------------------------------------------------------------


async def story() -> None:
    with tempfile.TemporaryDirectory(prefix="varlog-bank-") as directory:
        async with own_cluster(Path(directory)) as address:
            print("a cluster runs at", address, flush=True)
            async with asyncio.timeout(120), books_of(address) as books:
                await books.write(dict.fromkeys(ACCOUNTS, b"%d" % OPENING_BALANCE))
                await with_branches(address, books)
                await new_branch(address, books)
                await overdraw(books)
    print("done", flush=True)


async def with_branches(address: str, books: KeyValue) -> None:
    names = ("branch-1", "branch-2", "branch-3")
    branches = {name: python(__file__, "--cluster", address, "--branch", name) for name in names}
    try:
        await audited(books, set(branches))
        print("--- branch-1 is killed", flush=True)
        branches["branch-1"].kill()
        await audited(books, {"branch-2", "branch-3"})
    finally:
        for branch in branches.values():
            branch.kill()
            branch.communicate()
    receipts = await books.range("receipt/")
    print(
        f"{len(receipts)} transfers were made, and the accounts have {await total(books)} together",
        flush=True,
    )


async def audited(books: KeyValue, working: set[str]) -> None:
    """Watch the branches until each of them has made some transfers, and add up all accounts after each observed one."""
    missing = {branch: TRANSFERS // len(working) for branch in working}
    async with aclosing(books.watch("receipt/")) as receipts:
        async for receipt in receipts:
            assert await total(books) == OPENING_BALANCE * len(ACCOUNTS), (
                "money came from nowhere, or went there"
            )
            branch = receipt.key.split("/")[1]
            missing[branch] = missing.get(branch, 0) - 1
            if all(left <= 0 for left in missing.values()):
                return


async def total(books: KeyValue) -> int:
    """The sum at one moment, while others transfer: a read-only transaction never waits, and always commits."""
    async with await Transactions(books).begin() as bank:
        return sum(int(value) for _, value in bank.range("account/"))


async def new_branch(address: str, books: KeyValue) -> None:
    """It need not read the whole history: the log is trimmed up to the snapshot."""
    saved = await books.checkpoint(trim=True)
    async with books_of(address) as new:
        assert await new.range() == await books.range()
        print(f"a new branch has begun with what was saved at {saved}, and has the same books", flush=True)


async def overdraw(books: KeyValue) -> None:
    """Ann and Bob share two accounts, whose sum must not fall below 0; each withdraws 80 from one of them, concurrently."""
    for isolation in ("snapshot", "serializable"):
        await books.write({"shared/ann": b"50", "shared/bob": b"50"})
        transactions = Transactions(books, isolation=isolation)
        ann, bob = await transactions.begin(), await transactions.begin()
        for bank, own in ((ann, "shared/ann"), (bob, "shared/bob")):
            if sum(int(value) for _, value in bank.range("shared/")) >= 80:
                bank.put(own, b"%d" % (balance(bank, own) - 80))
        await ann.commit()
        try:
            await bob.commit()
        except Conflict as conflict:
            print(f"{isolation}: {conflict}", flush=True)
        left = sum(int(found.value or b"0") for found in await books.range("shared/"))
        print(f"{isolation}: they have {left} together", flush=True)
        assert (left < 0) == (isolation == "snapshot")


@asynccontextmanager
async def own_cluster(directory: Path) -> AsyncIterator[str]:
    """Three storage nodes, a manager and a metadata repository on this machine, one process each."""
    port = next(port for port in range(7500 + os.getpid() % 50 * 20, 9900, 20) if free(port))
    up = python(
        "-m", "varlog.cli", "up", "--no-proxy", "--port", str(port), "--data", str(directory / "data")
    )
    try:
        assert up.stdout is not None
        while "ready" not in (line := up.stdout.readline()):
            assert line, "the cluster did not start"
        yield f"127.0.0.1:{port}"
    finally:
        up.terminate()
        up.communicate()


def python(*arguments: str) -> subprocess.Popen[str]:
    """A process of its own."""
    return subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True)


def free(port: int) -> bool:
    """Nobody listens at any of the ports that `varlog up --port` takes."""
    for own in (port, port + 1, *range(port + 10, port + 13)):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", own)) == 0:
                return False
    return True


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="A bank whose books are a log.")
    options.add_argument("--cluster", help="the address of a cluster that is there, for one branch")
    options.add_argument("--branch", default=f"branch-{os.getpid()}")
    given = options.parse_args()
    try:
        asyncio.run(work(given.cluster, given.branch) if given.cluster else story())
    except KeyboardInterrupt:
        pass
