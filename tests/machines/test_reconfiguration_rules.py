"""Any writes, deaths, wipes, joins and reconfigurations: what was acknowledged stays on every node of its chain (laws 3, 4, 8)."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from varlog.model.errors import Unavailable
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import Projection, SequencerID
from varlog.reconfiguration.rules import SealAnswer, Wish, first_projection, next_projection, thin

NODES = tuple(NodeID(number) for number in range(1, 6))
TOPIC = TopicID(1)
STREAMS_MAX = 3


@dataclass
class Unit:
    """What a node has of a stream. `alive`: it answers seals; one that does not may come back with all it has."""

    pages: dict[LLSN, str] = field(default_factory=dict)

    @property
    def newest(self) -> LLSN:
        return max(self.pages, default=LLSN(0))


@dataclass
class Token:
    """A position that some client was given, and where in the chain it is with it."""

    glsn: GLSN
    value: str
    sequencer: SequencerID | None
    hops: int = 0


class Reconfigurations(RuleBasedStateMachine):
    """One topic. Writes go head to tail, a node at a time, so that any reconfiguration finds them half-way."""

    @initialize(streams=st.integers(1, 2), stripe_size=st.integers(1, 3), replicas=st.integers(1, 3))
    def begin(self, streams: int, stripe_size: int, replicas: int) -> None:
        self.replicas = replicas
        self.units: dict[tuple[LogStreamID, NodeID], Unit] = {}
        self.acknowledged: dict[GLSN, str] = {}
        self.places: dict[GLSN, tuple[LogStreamID, LLSN]] = {}
        self.tokens: list[Token] = []
        self.silent: set[NodeID] = set()
        self.numbers = 0
        chains = {LogStreamID(number): NODES[:replicas] for number in range(1, streams + 1)}
        for log_stream, nodes in chains.items():
            self._make(log_stream, nodes)
        sealed = {at: dict.fromkeys(nodes, SealAnswer(LLSN(0))) for at, nodes in chains.items()}
        self.sequencer = SequencerID("sq:1", 1)
        self.now = first_projection(TOPIC, GLSN(1), stripe_size, chains, sealed, self.sequencer)
        self.next = GLSN(1)

    def _make(self, log_stream: LogStreamID, nodes: tuple[NodeID, ...]) -> None:
        self.units.update({(log_stream, node): Unit() for node in nodes})

    # --- clients ------------------------------------------------------------------------------------------------------

    @rule()
    def give(self) -> None:
        self.numbers += 1
        self.tokens.append(Token(self.next, f"value {self.numbers}", self.now.sequencer))
        self.next = GLSN(self.next + 1)

    @precondition(lambda self: self.tokens)
    @rule(pick=st.integers(0, 99))
    def write(self, pick: int) -> None:
        """One hop. A write that finds another value gives up; the last hop acknowledges."""
        token = self.tokens[pick % len(self.tokens)]
        place = self.now.locate(token.glsn)
        node = self.now.chain(place.log_stream).nodes[token.hops]
        if node in self.silent:
            return
        pages = self.units[place.log_stream, node].pages
        found = pages.setdefault(place.llsn, token.value)
        if found != token.value:
            assert token.hops == 0, "only the head decides who has a position"
            self.tokens.remove(token)
            return
        token.hops += 1
        if token.hops == len(self.now.chain(place.log_stream).nodes):
            assert token.glsn not in self.acknowledged, "a position is given once"
            self.acknowledged[token.glsn] = token.value
            self.places[token.glsn] = (place.log_stream, place.llsn)
            self.tokens.remove(token)

    @precondition(lambda self: self.next > 1)
    @rule(pick=st.integers(0, 999))
    def fill(self, pick: int) -> None:
        """A reader repairs a position: what the head has goes down the chain, else junk does."""
        place = self.now.locate(GLSN(1 + pick % (self.next - 1)))
        nodes = self.now.chain(place.log_stream).nodes
        if not self.silent.isdisjoint(nodes):
            return
        value = self.units[place.log_stream, nodes[0]].pages.get(place.llsn, "junk")
        for node in nodes:
            found = self.units[place.log_stream, node].pages.setdefault(place.llsn, value)
            assert found == value, "the chain is filled head to tail"

    # --- faults -------------------------------------------------------------------------------------------------------

    @rule(node=st.sampled_from(NODES))
    def silence_or_return(self, node: NodeID) -> None:
        self.silent.symmetric_difference_update({node})

    # --- reconfiguration ----------------------------------------------------------------------------------------------

    @rule(
        accused=st.frozensets(st.sampled_from(NODES), max_size=3),
        deaf=st.frozensets(st.sampled_from(NODES), max_size=2),
        troubled=st.frozensets(st.sampled_from(NODES), max_size=2),
        join=st.booleans(),
        replace=st.booleans(),
        lose_sequencer=st.booleans(),
    )
    def reconfigure(
        self,
        accused: frozenset[NodeID],
        deaf: frozenset[NodeID],
        troubled: frozenset[NodeID],
        join: bool,
        replace: bool,
        lose_sequencer: bool,
    ) -> None:
        """A node that is silent, or missed this request, is not sealed."""
        joining, leaving = self._newcomers(replace) if join else ({}, {})
        wish = Wish(accused=accused, join=joining, leave=leaving)
        self._propose(wish, deaf, troubled, lose_sequencer)

    @precondition(lambda self: len(self.now.chains) < STREAMS_MAX)
    @rule(deaf=st.frozensets(st.sampled_from(NODES), max_size=2), lose_sequencer=st.booleans())
    def add_stream(self, deaf: frozenset[NodeID], lose_sequencer: bool) -> None:
        log_stream = LogStreamID(len(self.now.chains) + 1)
        self._make(log_stream, NODES[: self.replicas])
        wish = Wish(streams={log_stream: NODES[: self.replicas]})
        self._propose(wish, deaf, frozenset(), lose_sequencer)

    def _newcomers(
        self, replace: bool
    ) -> tuple[dict[LogStreamID, tuple[NodeID, ...]], dict[LogStreamID, tuple[NodeID, ...]]]:
        """Every node that is away, emptied first, as a rebuild does; or a new node in place of the first member."""
        joining: dict[LogStreamID, tuple[NodeID, ...]] = {}
        leaving: dict[LogStreamID, tuple[NodeID, ...]] = {}
        for chain in self.now.chains:
            new = next((node for node in NODES if node not in chain.members), None)
            if replace and new is not None:
                joining[chain.log_stream], leaving[chain.log_stream] = (new,), (chain.members[0],)
            elif chain.out_of_sync:
                joining[chain.log_stream] = chain.out_of_sync
            for node in joining.get(chain.log_stream, ()):
                self.units[chain.log_stream, node] = Unit()
        return joining, leaving

    def _propose(
        self, wish: Wish, deaf: frozenset[NodeID], troubled: frozenset[NodeID], lose_sequencer: bool
    ) -> None:
        now = self.now
        unreported = self.silent | deaf
        members = {
            chain.log_stream: (*chain.nodes, *wish.join.get(chain.log_stream, ())) for chain in now.chains
        }
        sealed = {
            log_stream: {
                node: SealAnswer(self.units[log_stream, node].newest, "poor" if node in troubled else "")
                for node in nodes
                if node not in unreported
            }
            for log_stream, nodes in {**members, **wish.streams}.items()
        }
        self._last_copies(wish, sealed)
        sequencer = SequencerID("sq:1", self.sequencer.incarnation + 1) if lose_sequencer else self.sequencer
        try:
            proposed = next_projection(now, sealed, wish, sequencer)
        except Unavailable:
            dumb = [chain for chain in now.chains if not set(chain.nodes) & set(sealed[chain.log_stream])]
            assert dumb, "it is refused only where nobody knows what a stream holds"
            return
        self._check(now, proposed, sealed, wish)
        self._take(now, proposed)

    def _last_copies(self, wish: Wish, sealed: dict[LogStreamID, dict[NodeID, SealAnswer]]) -> None:
        """A joining node gets what the last node of the chain has; if no node of it answers, it does not join."""
        for log_stream, nodes in wish.join.items():
            chain = self.now.chain(log_stream)
            source = next((node for node in reversed(chain.nodes) if node in sealed[log_stream]), None)
            for node in nodes:
                if source is None:
                    sealed[log_stream].pop(node, None)
                elif node in sealed[log_stream]:
                    self.units[log_stream, node] = Unit(dict(self.units[log_stream, source].pages))

    def _check(
        self,
        now: Projection,
        proposed: Projection,
        sealed: dict[LogStreamID, dict[NodeID, SealAnswer]],
        wish: Wish,
    ) -> None:
        assert proposed.epoch == now.epoch + 1 and proposed.begin >= now.begin
        for chain in proposed.chains:
            assert set(chain.nodes) <= set(sealed[chain.log_stream]), "only who was sealed serves"
        for chain in now.chains:
            after = proposed.chain(chain.log_stream)
            kept = [node for node in chain.nodes if node in after.nodes]
            assert list(after.nodes[: len(kept)]) == kept, "a member that stays keeps its place"
            assert len(after.members) >= len(chain.members), "no stream ends with fewer members"
        assert all(len(chain.nodes) == 1 for chain in thin(proposed))
        for glsn, place in self.places.items():
            assert proposed.locate(glsn)[:2] == place, "no position that was written moves (law 3)"
            assert glsn < proposed.begin
        held = {*self.places.values()}
        for ahead in range(12):
            assert proposed.locate(GLSN(proposed.begin + ahead))[:2] not in held, (
                "no place is given twice (law 8)"
            )

    def _take(self, now: Projection, proposed: Projection) -> None:
        self.now = proposed
        if proposed.sequencer != now.sequencer:
            assert proposed.sequencer is not None
            self.sequencer, self.next = proposed.sequencer, proposed.begin
        else:
            self.next = max(self.next, proposed.begin)
        # A token of one that was replaced is good below where the new one counts from; each begins at the head again.
        self.tokens = [
            token
            for token in self.tokens
            if token.sequencer == proposed.sequencer or token.glsn < proposed.begin
        ]
        for token in self.tokens:
            token.hops = 0

    # --- the laws -----------------------------------------------------------------------------------------------------

    @invariant()
    def acknowledged_is_on_the_whole_chain(self) -> None:
        for glsn, value in self.acknowledged.items():
            place = self.now.locate(glsn)
            for node in self.now.chain(place.log_stream).nodes:
                assert self.units[place.log_stream, node].pages.get(place.llsn) == value, (glsn, node)

    @invariant()
    def what_a_node_has_all_before_it_have(self) -> None:
        """Law 8."""
        for chain in self.now.chains:
            before: dict[LLSN, str] | None = None
            for node in chain.nodes:
                pages = self.units[chain.log_stream, node].pages
                assert before is None or pages.items() <= before.items(), (chain, node)
                before = pages


TestReconfigurations = Reconfigurations.TestCase
