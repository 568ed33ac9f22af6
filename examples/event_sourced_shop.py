"""An event-sourced shop: commands become events, events become views.

    python examples/event_sourced_shop.py      the story below, on a cluster of its own; needs `pip install 'varlog[spark]'`

The story: goods are delivered, and three clerks sell them as fast as they can. Each uses its own copy of the shop, and no
piece is ever sold twice: an order that comes too late is refused. About half of the orders are paid, the others are
cancelled. The events are published as JSON; the publisher dies before it could record what it has published, and the next
one publishes it again. Then two views are built from the events, and agree: one by a plain subscription, and one in Spark,
which also answers a question that was unknown when the events were written, and shows a former state of the shop.

How: a command is an entry of the topic `shop`. Every copy decides it alike at its position (`decide`). The resulting events,
with numbers 1, 2, 3 …, wait in an outbox that is part of the shop. The publisher appends them to the topic `shop-events`,
then has the shop forget them: in this order, so that none is lost. A duplicate has a number that occurred before, and readers
skip it.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import varlog
import varlog.spark
from varlog.recipes.blocking import ReplicatedStateMachine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Fact = dict[str, Any]
PRICES = {"lamp": 4900, "mug": 900, "poster": 1500}  # in cents
PIECES = 20  # of each
SCHEMA = "number bigint, what string, id bigint, article string, pieces int, customer string, cents bigint"


# --- The shop: commands in, events out --------------------------------------------------------------------------------------


class Refused(Exception):
    """The shop refuses the command; nothing has happened."""


class Shop:
    """A machine for ReplicatedStateMachine. Its state follows from the events, and from which of them are not published yet."""

    def __init__(self) -> None:
        self.stock: dict[str, int] = {}
        self.orders: dict[int, Fact] = {}  # the open ones, by number
        self.happened = 0
        self.outbox: list[Fact] = []

    def apply(self, at: varlog.GLSN, command: bytes) -> Fact:
        """The result of a command: an event, or {"refused": why}. The same in every copy."""
        given = json.loads(command)
        if given["do"] == "forget":
            self.outbox = [event for event in self.outbox if event["number"] > given["until"]]
            return {}
        try:
            event = {"number": self.happened + 1, **self.decide(at, **given)}
        except Refused as refused:
            return {"refused": str(refused)}
        self.evolve(event)
        self.outbox.append(event)
        return event

    def decide(self, at: int, do: str, **given: Any) -> Fact:
        """Turn a command into an event, or raise Refused. Changes nothing."""
        match do:
            case "deliver":
                return {"what": "delivered", **given}
            case "order":
                if (left := self.stock.get(given["article"], 0)) < given["pieces"]:
                    raise Refused(f"{given['pieces']} of {given['article']} are not in stock, {left} are")
                cents = given["pieces"] * PRICES[given["article"]]
                return {"what": "ordered", "id": at, "cents": cents, **given}
            case "pay" | "cancel":
                if (order := self.orders.get(given["id"])) is None:
                    raise Refused(f"order {given['id']} is not open")
                return {**order, "what": "paid" if do == "pay" else "cancelled"}
        raise Refused(f"unknown command {do}")

    def evolve(self, event: Fact) -> None:
        """Apply an event to the state: nothing else changes it."""
        self.happened = event["number"]
        article = event["article"]
        self.stock.setdefault(article, 0)
        match event["what"]:
            case "delivered":
                self.stock[article] += event["pieces"]
            case "ordered":
                self.stock[article] -= event["pieces"]
                self.orders[event["id"]] = {key: event[key] for key in event if key not in ("number", "what")}
            case "paid":
                del self.orders[event["id"]]
            case "cancelled":
                self.stock[article] += self.orders.pop(event["id"])["pieces"]

    def snapshot(self) -> bytes:
        return json.dumps([self.stock, [*self.orders.items()], self.happened, self.outbox]).encode()

    def restore(self, snapshot: bytes) -> None:
        self.stock, orders, self.happened, self.outbox = json.loads(snapshot)
        self.orders = dict(orders)


class Clerk:
    """A clerk with a copy of the shop. What `do` returns has happened; a refusal is {"refused": why}."""

    def __init__(self, shop: ReplicatedStateMachine[Shop]) -> None:
        self.shop = shop

    def do(self, what: str, **given: Any) -> Fact:
        happened: Fact = self.shop.execute(json.dumps({"do": what, **given}).encode())
        return happened

    def sell(self, seed: int) -> int:
        """Order one to three pieces of random articles, and pay or cancel each order immediately. Returns how many orders
        came too late."""
        chance, too_late = random.Random(seed), 0
        for number in range(25):
            wish = {"article": chance.choice([*PRICES]), "pieces": chance.randint(1, 3)}
            ordered = self.do("order", **wish, customer=f"customer {seed}-{number % 5}")
            if "refused" in ordered:
                too_late += 1
            else:
                self.do(chance.choice(["pay", "cancel"]), id=ordered["id"])
        return too_late

    def publish(self, events: varlog.Log, *, dies: bool = False) -> int:
        """Publish the outbox in one batch. If the publisher dies before that is recorded, the events are published again."""
        waiting = self.shop.read(lambda shop: list(shop.outbox))
        if waiting:
            events.append_batch([json.dumps(event).encode() for event in waiting])
            if not dies:
                self.do("forget", until=waiting[-1]["number"])
        return len(waiting)


@contextmanager
def clerk_of(address: str) -> Iterator[Clerk]:
    with (
        varlog.connect(address, topic="shop", create=True) as log,
        ReplicatedStateMachine(log, Shop(), name="shop") as shop,
    ):
        yield Clerk(shop)


# --- A view by a plain subscription -----------------------------------------------------------------------------------------


def facts(events: varlog.Log) -> Iterator[Fact]:
    """All events up to now, each once."""
    last = 0
    for entry in events.subscribe(1, end=events.tail() + 1):
        event = json.loads(entry.data)
        if event["number"] > last:
            last = event["number"]
            yield event


def revenue(events: varlog.Log) -> Counter[str]:
    """Cents by article."""
    cents: Counter[str] = Counter()
    for event in facts(events):
        if event["what"] == "paid":
            cents[event["article"]] += event["cents"]
    return cents


# --- A view in Spark --------------------------------------------------------------------------------------------------------


def events_frame(spark: SparkSession, address: str, **options: str) -> DataFrame:
    """The same, each event once, as a DataFrame."""
    topic = spark.read.format("varlog").options(address=address, topic="shop-events", **options).load()
    parsed = topic.selectExpr("glsn", f"from_json(cast(data AS string), '{SCHEMA}') AS event")
    return parsed.select("glsn", "event.*").dropDuplicates(["number"])


def look_with_spark(spark: SparkSession, address: str, expected: Counter[str]) -> None:
    events = events_frame(spark, address)
    paid = events.where("what = 'paid'").groupBy("article").agg({"cents": "sum"}).collect()
    assert {row[0]: row[1] for row in paid} == expected, "both views agree"
    print("Spark says the same", flush=True)

    # A question that was unknown when the events were written: which share of the orders is cancelled?
    asked = "article, round(count_if(what = 'cancelled') / count_if(what = 'ordered'), 2) AS cancelled"
    events.createOrReplaceTempView("events")
    spark.sql(f"SELECT {asked} FROM events GROUP BY article ORDER BY article").show()

    # A former state of the shop: events never change, so every earlier state can be rebuilt.
    before = events_frame(spark, address, endingOffsets="4")
    stock = {fact.article: fact.pieces for fact in before.collect()}
    assert stock == dict.fromkeys(PRICES, PIECES), "the first three events are deliveries"
    print("before anything was sold there were", stock, flush=True)


# --- The story --------------------------------------------------------------------------------------------------------------


def story() -> None:
    with tempfile.TemporaryDirectory(prefix="varlog-shop-") as directory, own_cluster(directory) as address:
        print("a cluster runs at", address, flush=True)
        with ExitStack() as opened:
            clerks = [opened.enter_context(clerk_of(address)) for _ in range(3)]
            events = opened.enter_context(varlog.connect(address, topic="shop-events", create=True))
            sell(clerks)
            publish(clerks, events)
            cents = revenue(events)
            for article, sum_cents in sorted(cents.items()):
                print(f"{article}: {sum_cents / 100:.2f} were paid", flush=True)
        spark = varlog.spark.session("shop", "local[2]", {"spark.sql.shuffle.partitions": "2"})
        look_with_spark(spark, address, cents)
        spark.stop()
    print("done", flush=True)


def sell(clerks: list[Clerk]) -> None:
    for article in PRICES:
        clerks[0].do("deliver", article=article, pieces=PIECES)
    print("refused:", clerks[0].do("order", article="mug", pieces=21, customer="x")["refused"], flush=True)
    with ThreadPoolExecutor(len(clerks)) as pool:
        too_late = sum(pool.map(lambda work: work[1].sell(work[0]), enumerate(clerks, 1)))
    print(f"three clerks took orders, and were too late for {too_late}", flush=True)
    # Each copy has applied the commands of all of them: all are the same.
    for clerk in clerks:
        clerk.shop.catch_up()
    copies = {clerk.shop.read(lambda shop: shop.snapshot()) for clerk in clerks}
    assert len(copies) == 1, "the copies differ"
    assert min(clerks[0].shop.read(lambda shop: list(shop.stock.values()))) >= 0, "sold more than there was"


def publish(clerks: list[Clerk], events: varlog.Log) -> None:
    published = clerks[0].publish(events, dies=True)
    print(
        f"{published} events were published, and the publisher died before it could record that", flush=True
    )
    again = clerks[1].publish(events)
    seen = [event["number"] for event in facts(events)]
    assert seen == list(range(1, published + 1)), "each once, in order"
    print(f"another one published {again}: {events.tail()} entries, {len(seen)} events", flush=True)


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
    for own in (port, port + 1, *range(port + 10, port + 14)):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", own)) == 0:
                return False
    return True


if __name__ == "__main__":
    story()
