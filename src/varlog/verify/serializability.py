"""Serializability: dependencies of transactions, and the cycles among them.

Cycles have their names: G0, G1a, G1b, G1c, G-single, G2.

After Adya's thesis and Elle: `ww` a version follows one of another transaction, `wr` it was read, `rw` it follows a version that
was read, `rt` one ended before the other began. What an isolation level forbids is the table FORBIDDEN.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from varlog.verify.transaction_history import RecordedTransaction, TransactionHistory, Version

# Cycles: strongly connected parts of a labelled graph, and shortest cycles.


class Edge(NamedTuple):
    """From one node to another, and why: `label` is the kind, `why` the explanation."""

    source: int
    target: int
    label: str
    why: str


@dataclass(slots=True)
class Graph:
    """Nodes are numbers. Several edges may join the same two, each with a label of its own; one of each label is kept."""

    edges: dict[int, dict[tuple[int, str], Edge]] = field(default_factory=dict)

    def add(self, source: int, target: int, label: str, why: str = "") -> None:
        if source != target:
            self.edges.setdefault(source, {}).setdefault(
                (target, label), Edge(source, target, label, why or label)
            )

    def out(self, node: int) -> Iterable[Edge]:
        return self.edges.get(node, {}).values()

    def only(self, labels: Iterable[str]) -> Graph:
        """The same nodes with the edges of these labels alone."""
        wanted, kept = set(labels), Graph()
        for edge in self.all():
            if edge.label in wanted:
                kept.add(*edge)
        return kept

    def all(self) -> Iterator[Edge]:
        for edges in self.edges.values():
            yield from edges.values()


def components(graph: Graph) -> list[set[int]]:
    """Sets of nodes that all reach each other, those of more than one node alone (Tarjan, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[set[int]] = []
    for root in sorted(graph.edges):
        if root in index:
            continue
        work = [(root, iter(sorted({edge.target for edge in graph.out(root)})))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(sorted({edge.target for edge in graph.out(target)}))))
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    part: set[int] = set()
                    while node not in part:
                        part.add(stack.pop())
                    on_stack -= part
                    if len(part) > 1:
                        found.append(part)
    return found


# What a walk over edges remembers of them: a state and an edge give the next state, or None where the walk must stop.
EdgeStep = Callable[[int, Edge], int | None]


def shortest_cycle(
    graph: Graph,
    part: set[int],
    begin: Iterable[tuple[Edge, int]],
    step: EdgeStep,
    ends: Callable[[int], bool],
) -> list[Edge] | None:
    """The shortest walk within `part` that begins with one of the given edges, in the state beside it, and comes back to where
    that edge came from in a state that `ends` takes."""
    best: list[Edge] | None = None
    for first, state in begin:
        if first.source in part and first.target in part:
            cycle = _walk_back(graph, part, first, state, step, ends)
            if cycle is not None and (best is None or len(cycle) < len(best)):
                best = cycle
    return best


def _walk_back(
    graph: Graph, part: set[int], first: Edge, state: int, step: EdgeStep, ends: Callable[[int], bool]
) -> list[Edge] | None:
    came: dict[tuple[int, int], tuple[tuple[int, int], Edge] | None] = {(first.target, state): None}
    waiting = deque([(first.target, state)])
    while waiting:
        here = waiting.popleft()
        for edge in graph.out(here[0]):
            after = step(here[1], edge) if edge.target in part else None
            if after is None or (edge.target, after) in came:
                continue
            came[edge.target, after] = here, edge
            if edge.target == first.source and ends(after):
                return [first, *_path(came, (edge.target, after))]
            waiting.append((edge.target, after))
    return None


def _path(
    came: dict[tuple[int, int], tuple[tuple[int, int], Edge] | None], at: tuple[int, int]
) -> list[Edge]:
    path: list[Edge] = []
    while (back := came[at]) is not None:
        at, edge = back
        path.append(edge)
    return path[::-1]


WW, WR, RW, RT = "ww", "wr", "rw", "rt"
REALTIME = "-realtime"

# In every one of them: wrong whatever is promised.
ALWAYS: Final = frozenset({"incompatible-order", "duplicate", "internal", "garbage-read"})
_COMMITTED = ALWAYS | {"G0", "G1a", "G1b", "G1c"}
# A snapshot is what was committed when it began, so that an order in real time binds it. What it allows is two `rw` in a row: write
# skew. "unrepeatable" is a second read of a key that shows another version.
_SNAPSHOT = _COMMITTED | {
    *("lost-append", "unrepeatable", "G-single", "G-nonadjacent"),
    *(name + REALTIME for name in ("G0", "G1c", "G-single", "G-nonadjacent")),
}
FORBIDDEN: Final[dict[str, frozenset[str]]] = {
    "read_committed": _COMMITTED,
    "snapshot": _SNAPSHOT,
    "serializable": _SNAPSHOT | {"G2", "G2" + REALTIME},
}


class Anomaly(NamedTuple):
    """Its name, and the transactions that make it, in words."""

    kind: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.sentence}"


def anomalies(history: TransactionHistory) -> list[Anomaly]:
    """Everything that a serial order of the transactions, each between its begin and its end, could not show."""
    found = [Anomaly(kind, sentence) for kind, sentence in history.wrong]
    dependencies = Dependencies.of(history)
    found += dependencies.wrong
    found += dependencies.cycles()
    return found


def violations(history: TransactionHistory, level: str) -> list[Anomaly]:
    """What the isolation level forbids, and is there."""
    return [one for one in anomalies(history) if one.kind in FORBIDDEN[level]]


@dataclass(slots=True)
class Dependencies:
    """The graph: a node is a transaction that counts, by its number in `transactions`."""

    transactions: list[RecordedTransaction]
    graph: Graph
    wrong: list[Anomaly]

    @classmethod
    def of(cls, history: TransactionHistory) -> Dependencies:
        transactions = _that_count(history)
        made = cls(transactions, Graph(), [])
        made._read_wrongly(history)
        made._depend(history.orders)
        made._in_real_time()
        return made

    def _read_wrongly(self, history: TransactionHistory) -> None:
        """What no cycle is needed for: reads of what was aborted, was not final, or nobody wrote; a read that changes."""
        writer: dict[tuple[str, Version], RecordedTransaction] = {
            (op.key, op.version): one for one in history.transactions for op in one.ops if op.writes
        }
        for one in self.transactions:
            seen: dict[str, Version] = {}
            for op in one.reads_of_others():
                if seen.setdefault(op.key, op.version) != op.version:
                    self._trace("unrepeatable", f"{one} read {op.key} as {seen[op.key]} and {op.version}")
                if op.version is None:
                    continue
                by = writer.get((op.key, op.version))
                if by is None:
                    self._trace("garbage-read", f"{one} read {op.version} of {op.key}, which nobody wrote")
                elif by.committed is False:
                    self._trace("G1a", f"{one} read {op.version} of {op.key}, of {by}, which was aborted")
                elif by is not one and by.last_writes()[op.key] != op.version:
                    self._trace("G1b", f"{one} read {op.version} of {op.key}, which {by} wrote over")
            for key, version in _own_reads(one):
                self._trace("internal", f"{one} read {version} of {key} behind its own write of another")

    def _trace(self, kind: str, sentence: str) -> None:
        self.wrong.append(Anomaly(kind, sentence))

    def _depend(self, orders: dict[str, list[Version]]) -> None:
        writer: dict[tuple[str, Version], int] = {
            (op.key, op.version): number
            for number, one in enumerate(self.transactions)
            for op in one.ops
            if op.writes
        }
        following: dict[tuple[str, Version], Version] = {}
        for key, order in orders.items():
            for before, after in zip((None, *order), order, strict=False):
                following[key, before] = after
                if (key, before) in writer and (key, after) in writer:
                    why = f"wrote {after} of {key} behind {before} of"
                    self.graph.add(writer[key, before], writer[key, after], WW, why)
        for number, one in enumerate(self.transactions):
            for op in one.reads_of_others():
                if (key_version := (op.key, op.version)) in writer:
                    self.graph.add(writer[key_version], number, WR, f"read {op.version} of {op.key} by")
                overwriter = self._overwriter(number, op.key, op.version, following, writer)
                if overwriter is not None:
                    by, version = overwriter
                    self.graph.add(number, by, RW, f"wrote {version} of {op.key} over {op.version} seen by")

    def _overwriter(
        self,
        reader: int,
        key: str,
        version: Version,
        following: dict[tuple[str, Version], Version],
        writer: dict[tuple[str, Version], int],
    ) -> tuple[int, Version] | None:
        """Who wrote the next version of what was read; if the reader itself did, nobody: the rest follows from `ww`."""
        after = following.get((key, version))
        by = writer.get((key, after))
        return None if after is None or by is None or by == reader else (by, after)

    def _in_real_time(self) -> None:
        """Without those edges that follow from two others."""
        ended = sorted(
            (one.ended, number)
            for number, one in enumerate(self.transactions)
            if one.ended is not None and one.committed
        )
        for number, one in enumerate(self.transactions):
            before = [(end, other) for end, other in ended if end < one.began and other != number]
            newest = max((self.transactions[other].began for _, other in before), default=0)
            for end, other in before:
                if end >= newest:
                    self.graph.add(other, number, RT, "began behind the end of")

    # --- cycles ---------------------------------------------------------------------------------------------------

    def cycles(self) -> Iterator[Anomaly]:
        """The shortest cycle of each kind in each part of the graph. One that needs the order in real time is reported where
        there is none of its kind without it."""
        for plain in (WW,), (WW, WR):
            yield from self._of_kind("G0" if plain == (WW,) else "G1c", plain, _needs(plain[-1]))
        for kind, search in (
            ("G-single", _one_rw),
            ("G-nonadjacent", _rw_apart),
            ("G2", _two_rw_in_a_row),
        ):
            yield from self._of_kind(kind, (WW, WR, RW), search)

    def _of_kind(self, kind: str, labels: tuple[str, ...], search: Search) -> Iterator[Anomaly]:
        found = list(self._search(kind, self.graph.only(labels), search))
        yield from found or self._search(kind + REALTIME, self.graph.only((*labels, RT)), search)

    def _search(self, kind: str, graph: Graph, search: Search) -> Iterator[Anomaly]:
        for part in components(graph):
            cycle = search(graph, part)
            # A walk that meets a transaction twice is made of shorter ones of other kinds, which are reported as such.
            if cycle and len({edge.source for edge in cycle}) == len(cycle):
                yield Anomaly(kind, self._words(cycle))

    def _words(self, cycle: list[Edge]) -> str:
        names = self.transactions
        steps = "; ".join(
            f"{names[edge.target].name} {edge.why} {names[edge.source].name} ({edge.label})" for edge in cycle
        )
        whole = " ".join(str(names[edge.source]) for edge in cycle)
        return f"{steps}. Where {whole}"


Search = Callable[[Graph, set[int]], list[Edge] | None]


def _needs(label: str) -> Search:
    """Any cycle that has an edge of this label."""

    def search(graph: Graph, part: set[int]) -> list[Edge] | None:
        begin = [(edge, 0) for edge in _within(graph, part) if edge.label == label]
        return shortest_cycle(graph, part, begin, lambda _, __: 0, lambda _: True)

    return search


def _one_rw(graph: Graph, part: set[int]) -> list[Edge] | None:
    begin = [(edge, 0) for edge in _within(graph, part) if edge.label == RW]
    return shortest_cycle(graph, part, begin, lambda _, edge: None if edge.label == RW else 0, lambda _: True)


def _rw_apart(graph: Graph, part: set[int]) -> list[Edge] | None:
    """Two `rw` or more, never two in a row. State: 2 * (there was another one) + (the last edge was one)."""

    def step(state: int, edge: Edge) -> int | None:
        if edge.label != RW:
            return state & 2
        return None if state & 1 else 3

    begin = [(edge, 1) for edge in _within(graph, part) if edge.label == RW]
    return shortest_cycle(graph, part, begin, step, lambda state: state == 2)


def _two_rw_in_a_row(graph: Graph, part: set[int]) -> list[Edge] | None:
    """State: 0 the last edge was the first, an `rw`; 1 another one followed it; every cycle of this kind begins so somewhere."""

    def step(state: int, edge: Edge) -> int | None:
        return 1 if state or edge.label == RW else None

    begin = [(edge, 0) for edge in _within(graph, part) if edge.label == RW]
    return shortest_cycle(graph, part, begin, step, lambda state: state == 1)


def _within(graph: Graph, part: set[int]) -> list[Edge]:
    return [edge for edge in graph.all() if edge.source in part and edge.target in part]


def _that_count(history: TransactionHistory) -> list[RecordedTransaction]:
    """Those that committed. One of which nobody could say counts if its work was seen: by one that committed, or in the order."""
    seen = {(key, version) for key, order in history.orders.items() for version in order}
    seen |= {
        (op.key, op.version)
        for one in history.transactions
        if one.committed
        for op in one.ops
        if not op.writes
    }
    return [
        one
        for one in history.transactions
        if one.committed
        or (one.committed is None and any(item in seen for item in one.last_writes().items()))
    ]


def _own_reads(transaction: RecordedTransaction) -> Iterator[tuple[str, Version]]:
    """Reads behind an own write that show something else."""
    own: dict[str, Version] = {}
    for op in transaction.ops:
        if op.writes:
            own[op.key] = op.version
        elif op.key in own and own[op.key] != op.version:
            yield op.key, op.version
