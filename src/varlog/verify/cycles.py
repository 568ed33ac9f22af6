"""Cycles: strongly connected parts of a labelled graph, and shortest cycles."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple


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
Step = Callable[[int, Edge], int | None]


def shortest_cycle(
    graph: Graph, part: set[int], begin: Iterable[tuple[Edge, int]], step: Step, ends: Callable[[int], bool]
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
    graph: Graph, part: set[int], first: Edge, state: int, step: Step, ends: Callable[[int], bool]
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
