"""Checkers of sequenced topics: junk, chains, projections, tokens, seals.

All pass on a history without such topics.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from varlog.model.lsn import GLSN
from varlog.model.projection import Projection
from varlog.verify.history import (
    CallOutcome,
    Checker,
    Ending,
    History,
    ObservedGrant,
    ReadCall,
    StoredPage,
    SubscribeCall,
)


class SubscribersPassOverJunkAlone(Checker):
    """A subscriber of a sequenced topic gets every position from its first on, once, in order, but for those that are junk."""

    law = "R-READ-3, R-SEQ-7"
    beyond = True

    def check(self, history: History) -> Iterator[str]:
        for topic in sorted(history.sequenced):
            entries = {seen.glsn: who for _, seen, who in history.sightings(topic)}
            ending = _ending(history, topic)
            for operation in history.of(topic):
                if isinstance(operation, SubscribeCall):
                    yield from self._check_one(operation, entries, ending)

    def _check_one(
        self, operation: SubscribeCall, entries: dict[int, str], ending: Ending | None
    ) -> Iterator[str]:
        expected = operation.begin
        for _, seen in operation.got:
            if seen.glsn < expected:
                yield f"{operation}: repeated: expected {expected}, got {seen.glsn}"
                return
            if operation.end is not None and seen.glsn >= operation.end:
                yield f"{operation}: went beyond its end"
                return
            yield from self._check_passed(operation, range(expected, seen.glsn), entries, ending)
            expected = seen.glsn + 1
        if operation.outcome is CallOutcome.DONE and operation.end is not None:
            yield from self._check_passed(operation, range(expected, operation.end), entries, ending)

    def _check_passed(
        self, operation: SubscribeCall, passed: range, entries: dict[int, str], ending: Ending | None
    ) -> Iterator[str]:
        for glsn in passed:
            if glsn in entries:
                yield f"{operation}: passed over {glsn}, which has an entry: {entries[glsn]}"
            elif ending is not None and ending.trimmed < glsn and glsn not in ending.junk:
                yield f"{operation}: passed over {glsn}, which is no junk"


class JunkStaysJunk(Checker):
    """A position that was read as junk never holds anything else, for any client."""

    law = "law 8, R-SEQ-7"
    beyond = True

    def check(self, history: History) -> Iterator[str]:
        for topic in sorted(history.sequenced):
            entries = {seen.glsn: who for _, seen, who in history.sightings(topic)}
            ending = _ending(history, topic)
            for operation in history.of(topic):
                if (
                    not isinstance(operation, ReadCall)
                    or operation.outcome is not CallOutcome.FILLED
                    or not operation.glsn
                ):
                    continue
                if operation.glsn in entries:
                    yield f"{operation}, and yet it has an entry: {entries[operation.glsn]}"
                elif ending is not None and ending.trimmed < operation.glsn not in ending.junk:
                    yield f"{operation}, and no disk has it as junk at the end"


class PlacesFollowPositions(Checker):
    """Where a position is follows from the projection, in every epoch alike: no reconfiguration moves it."""

    law = "R-SEQ-3"
    beyond = True

    def check(self, history: History) -> Iterator[str]:
        for topic in sorted(history.sequenced):
            for number, projections in history.sequenced_facts.projections.items():
                if history.sequenced_facts.names.get(number) != topic:
                    continue
                newest = projections[max(projections)]
                for _, seen, who in history.sightings(topic):
                    place = newest.locate(GLSN(seen.glsn))
                    if (place.log_stream, place.llsn) != (seen.stream, seen.llsn):
                        yield (
                            f"position {seen.glsn} is at stream {seen.stream} llsn {seen.llsn} for {who}, and epoch "
                            f"{newest.epoch} has it at stream {place.log_stream} llsn {place.llsn}"
                        )


class UnitsEqual(Checker):
    """All units of a chain hold the same batches at the end, byte by byte, junk included."""

    law = "law 8, R-SEQ-14"

    def check(self, history: History) -> Iterator[str]:
        for ending in history.endings:
            for stream, units in ending.units.items():
                one, *others = units
                for other in others:
                    if units[one] != units[other]:
                        yield f"stream {stream} differs on {one} and {other}: {_first_difference(units[one], units[other])}"


class WrittenOnce(Checker):
    """What the tail of a chain had at an address stays there forever, across every reconfiguration and repair."""

    law = "law 8, R-SEQ-5"

    def check(self, history: History) -> Iterator[str]:
        yield from history.sequenced_facts.written_twice


class ChainsFillHeadToTail(Checker):
    """What a node of a chain has, those before it have as well."""

    law = "law 8, R-SEQ-4"

    def check(self, history: History) -> Iterator[str]:
        yield from history.sequenced_facts.broken_chains


class SealsHold(Checker):
    """A unit that has shown an epoch no longer answers requests of older ones, also after a restart."""

    law = "law 7, R-SEQ-9"
    beyond = True

    def check(self, history: History) -> Iterator[str]:
        yield from history.sequenced_facts.stale_answers


class ProjectionsFollow(Checker):
    """One projection per epoch, whatever its source; each follows from the one before: positions stay, chains keep their order."""

    law = "R-SEQ-3, law 7"
    beyond = True

    def check(self, history: History) -> Iterator[str]:
        yield from history.sequenced_facts.contradictions
        for projections in history.sequenced_facts.projections.values():
            ordered = [projections[epoch] for epoch in sorted(projections)]
            for one, two in pairwise(ordered):
                yield from self._check_pair(one, two)

    def _check_pair(self, one: Projection, two: Projection) -> Iterator[str]:
        name = f"topic {one.topic}: epoch {two.epoch} after {one.epoch}"
        if two.begin < one.begin:
            yield f"{name} begins at {two.begin}, before {one.begin}"
        for found in one.ranges:
            # Where nothing was ever written a range may be another one.
            if found.begin < two.begin and found not in two.ranges:
                yield f"{name} has lost the range {found}"
        if two.epoch != one.epoch + 1:
            return  # those in between were never sent
        for chain in one.chains:
            after = two.chain(chain.log_stream)
            kept = [node for node in after.nodes if node in chain.nodes]
            # All may be gone: those who joined were filled from one of them, who left then.
            if kept != [node for node in chain.nodes if node in kept]:
                yield f"{name}: the chain {chain} became {after}"
            elif kept != list(after.nodes[: len(kept)]):
                yield f"{name}: a node joined before the end of the chain {chain}: {after}"


class TokensOnce(Checker):
    """A sequencer gives each position once, and one that is new gives none from before the epoch in which it was named."""

    law = "R-SEQ-1, R-SEQ-2"
    beyond = True

    def check(self, history: History) -> Iterator[str]:
        given: dict[tuple[int, str], list[ObservedGrant]] = {}
        for tokens in history.sequenced_facts.tokens:
            given.setdefault((tokens.topic, tokens.who), []).append(tokens)
        for (topic, who), all_of_it in given.items():
            in_order = sorted(all_of_it, key=lambda tokens: (tokens.begin, tokens.end))
            for one, two in pairwise(in_order):
                if two.begin < one.end:
                    yield f"{who} gave positions of topic {topic} twice: {one} and {two}"
            projections = history.sequenced_facts.projections.get(topic, {})
            for tokens in in_order:
                epochs = _first_epoch_of(projections, tokens.epoch)
                if epochs is not None and tokens.begin < projections[epochs].begin:
                    yield f"{tokens}, but since epoch {epochs} positions begin at {projections[epochs].begin}"
        for ending in history.endings:
            yield from self._check_ending(history, ending)

    def _check_ending(self, history: History, ending: Ending) -> Iterator[str]:
        """A batch has the epoch in which its position was given: one from before a sequencer took over is below its first."""
        for topic, name in history.sequenced_facts.names.items():
            projections = history.sequenced_facts.projections.get(topic, {})
            begins = {
                epoch: projections[epoch].begin
                for epoch in projections
                if _first_epoch_of(projections, epoch) == epoch
            }
            for stored in ending.replicas.values() if name == ending.topic else ():
                for entry in next(iter(stored.values()), ()):
                    for epoch, begin in begins.items():
                        if entry.batch[0] < epoch and entry.glsn >= begin and epoch - 1 in projections:
                            yield (
                                f"position {entry.glsn} was given in epoch {entry.batch[0]}, but another sequencer began at "
                                f"{begin} in epoch {epoch}"
                            )


def _first_epoch_of(projections: dict[int, Projection], epoch: int) -> int | None:
    """The first epoch, of those without a gap up to this one, that has the same sequencer; None if `epoch` was never sent."""
    if epoch not in projections:
        return None
    while epoch - 1 in projections and projections[epoch - 1].sequencer == projections[epoch].sequencer:
        epoch -= 1
    return epoch


def _ending(history: History, topic: str) -> Ending | None:
    return next((ending for ending in history.endings if ending.topic == topic), None)


def _first_difference(one: list[StoredPage], two: list[StoredPage]) -> str:
    for a, b in zip(one, two, strict=False):
        if a != b:
            return f"{a} and {b}"
    return f"{len(one)} and {len(two)} batches"


SEQUENCED_CHECKERS: tuple[Checker, ...] = (
    SubscribersPassOverJunkAlone(),
    JunkStaysJunk(),
    PlacesFollowPositions(),
    UnitsEqual(),
    WrittenOnce(),
    ChainsFillHeadToTail(),
    SealsHold(),
    ProjectionsFollow(),
    TokensOnce(),
)
