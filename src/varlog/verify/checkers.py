"""Checkers: one class per property of a history.

Each cites its law and describes what was violated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from varlog.verify.history import (
    STOPPED,
    AppendCall,
    CallOutcome,
    Checker,
    ClientCall,
    Ending,
    History,
    KnownTail,
    OrderedAt,
    ReadCall,
    Seen,
    StoredEntry,
    SubscribeCall,
    TailCall,
    TrimCall,
    Window,
)
from varlog.verify.sequenced_checkers import SEQUENCED_CHECKERS

# A subscriber that waits so long, in virtual seconds, must have got everything that was there when it began.
PATIENCE_S = 2.0
# Of the throughput before, while a host is slow that a topic has nothing on.
KEPT_SHARE = 0.9
# A topic of two streams has at least so much of what it had in a window before, where no host is slow: see decision 26.
KEPT_BY_CHANCE = 0.85
# Of a topic of which one stream has nothing on the slow host. Each client of the gray watch has six appenders, and tries the
# slow stream with one append at a time: five of six continue, and a tenth is chance.
KEPT_BESIDE = 0.75
# In the error of a call on a topic that is STOPPED only because nodes could not be asked.
MISSED = "was reached since the metadata repository started"


class AcknowledgedSurvives(Checker):
    """What was acknowledged, or read by any client, is in the log at the end, at its position."""

    law = "law 10, law 5, R-FAIL-1"

    def check(self, history: History) -> Iterator[str]:
        for ending in history.endings:
            final = {seen.glsn: seen for seen in ending.entries}
            reported: set[int] = set()
            for operation in history.of(ending.topic):
                for _, seen in operation.seen():
                    if seen.glsn <= ending.trimmed or seen.glsn in reported or final.get(seen.glsn) == seen:
                        continue
                    reported.add(seen.glsn)
                    yield f"{_entry(seen)} is lost: at the end {_at(final, seen.glsn)}. Seen by {operation}"


class RightOrSaid(Checker):
    """Of harm that replication does not survive: what was acknowledged or read is where it was, or its loss is reported. Never is
    another entry there, never is it said to be trimmed, junk or not written, and never do all say that all is well."""

    law = "law 3, law 10"
    beyond = True

    def check(self, history: History) -> Iterator[str]:
        for account in history.accounts:
            held: dict[int, Seen] = {}
            for _, seen, who in history.sightings(account.topic):
                if held.setdefault(seen.glsn, seen) != seen:
                    yield f"position {seen.glsn} was {_entry(held[seen.glsn])}, and is {_entry(seen)}, seen by {who}"
            if held and account.gone and not account.shown:
                yield f"topic {account.topic} is gone, and nobody reports a loss: {account.gone}"
            for read in account.reads:
                lost = held[read.glsn]
                if read.outcome in (CallOutcome.TRIMMED, CallOutcome.FILLED, CallOutcome.NOT_WRITTEN):
                    yield f"{_entry(lost)} is lost, and that is not said: {read}"
                elif read.got is None and not account.shown:
                    yield f"{_entry(lost)} cannot be read, and the status shows nothing: {read}"


class OneEntryOnePosition(Checker):
    """An entry is in the log once: no retry doubles it, and one whose outcome is unknown is there at most once."""

    law = "law 3, R-ORD-7"
    beyond = True

    def check(self, history: History) -> Iterator[str]:
        for topic in history.topics():
            place: dict[bytes, Seen] = {}
            for _, seen, who in history.sightings(topic):
                first = place.setdefault(seen.data, seen)
                if (first.glsn, first.llsn, first.stream) != (seen.glsn, seen.llsn, seen.stream):
                    yield f"one entry is in the log twice: {_entry(first)} and {_entry(seen)}, seen by {who}"


class Immutable(Checker):
    """A position shows the same entry to everyone, forever."""

    law = "law 3"
    beyond = True

    def check(self, history: History) -> Iterator[str]:
        for topic in history.topics():
            held: dict[int, Seen] = {}
            local: dict[tuple[int, int], Seen] = {}
            for _, seen, who in history.sightings(topic):
                first = held.setdefault(seen.glsn, seen)
                if first != seen:
                    yield f"position {seen.glsn} changed: {_entry(first)}, then {_entry(seen)}, seen by {who}"
                first = local.setdefault((seen.stream, seen.llsn), seen)
                if first.glsn != seen.glsn:
                    yield (
                        f"stream {seen.stream} llsn {seen.llsn} is at {first.glsn} and at {seen.glsn}, seen by {who}"
                    )


class Dense(Checker):
    """Positions have no gaps: from the trim point to the tail, and within each stream."""

    law = "law 4"

    def check(self, history: History) -> Iterator[str]:
        for ending in history.endings:
            if ending.topic in history.sequenced:
                yield from self._check_sequenced(ending)
                continue
            expected = ending.trimmed + 1
            next_llsn: dict[int, int] = {}
            for seen in ending.entries:
                if seen.glsn != expected:
                    yield f"topic {ending.topic}: position {expected} is missing, next is {_entry(seen)}"
                expected = seen.glsn + 1
                if seen.llsn != next_llsn.get(seen.stream, seen.llsn):
                    yield f"stream {seen.stream}: llsn {next_llsn[seen.stream]} is missing before {_entry(seen)}"
                next_llsn[seen.stream] = seen.llsn + 1
            if expected != ending.tail + 1:
                yield f"topic {ending.topic}: the tail is {ending.tail}, the last entry read is {expected - 1}"

    def _check_sequenced(self, ending: Ending) -> Iterator[str]:
        """A position holds an entry or junk, never both and never neither (R-SEQ-7)."""
        read = {seen.glsn for seen in ending.entries}
        for glsn in range(ending.trimmed + 1, ending.tail + 1):
            if (glsn in read) == (glsn in ending.junk):
                what = "both an entry and junk" if glsn in read else "neither an entry nor junk"
                yield f"topic {ending.topic}: position {glsn} is {what}"
        if read and max(read) > ending.tail:
            yield f"topic {ending.topic}: the tail is {ending.tail}, the last entry read is {max(read)}"


class BeginsAtFirst(Checker):
    """The order of a topic begins at its first position, whichever process restarts before or after it is assigned."""

    law = "law 4"
    beyond = True

    def check(self, history: History) -> Iterator[str]:
        for topic in history.topics():
            for _, seen, who in history.sightings(topic):
                if seen.glsn < history.first:
                    yield f"{_entry(seen)} is before the first position {history.first}, seen by {who}"
            for operation in history.of(topic):
                tail = operation.glsn if isinstance(operation, TailCall) else None
                if tail is not None and tail < history.first - 1:
                    yield f"{operation}, but the topic begins at {history.first}"


class BatchesAtomic(Checker):
    """The entries of one append are consecutive in both orders, all or none."""

    law = "R-ORD-5"

    def check(self, history: History) -> Iterator[str]:
        for ending in history.endings:
            final = {seen.glsn: seen for seen in ending.entries}
            owner = _owners(history, ending.topic)
            for _, seen, who in history.sightings(ending.topic):
                if seen.data not in owner:
                    continue
                append, index = owner[seen.data]
                for other, data in enumerate(append.entries):
                    glsn, llsn = seen.glsn - index + other, seen.llsn - index + other
                    if glsn > ending.trimmed and final.get(glsn) != Seen(glsn, llsn, seen.stream, data):
                        yield (
                            f"{append} is torn: entry {index} is {_entry(seen)} (seen by {who}), "
                            f"but for entry {other} {_at(final, glsn)}"
                        )
                        break


class RealTimeOrder(Checker):
    """An append that starts after something was known to be in the log comes behind it, whatever the streams."""

    law = "R-ORD-4"
    beyond = True

    def check(self, history: History) -> Iterator[str]:
        for topic in history.topics():
            known = KnownTail(history, topic)
            place: dict[bytes, int] = {}
            for _, seen, _ in history.sightings(topic):
                place.setdefault(seen.data, seen.glsn)
            for operation in history.of(topic):
                if isinstance(operation, AppendCall) and operation.entries[0] in place:
                    glsn, before = place[operation.entries[0]], known.before(operation.started)
                    if glsn <= before:
                        yield f"{operation} is at {glsn}, but position {before} was known before it started"


class SubscribersSeePrefixes(Checker):
    """A subscriber gets every position from its first on, once, in order; a bounded one that ends got all of them."""

    law = "R-READ-3"
    beyond = True

    def check(self, history: History) -> Iterator[str]:
        for operation in history.operations:
            if not isinstance(operation, SubscribeCall) or operation.topic in history.sequenced:
                continue
            expected = operation.begin
            for _, seen in operation.got:
                if seen.glsn != expected:
                    what = "repeated" if seen.glsn < expected else "skipped"
                    yield f"{operation}: {what}: expected {expected}, got {_entry(seen)}"
                    break
                expected += 1
            else:
                if (
                    operation.outcome is CallOutcome.DONE
                    and operation.end is not None
                    and expected < operation.end
                ):
                    yield f"{operation}: ended without {expected}"
                if operation.end is not None and expected > max(operation.end, operation.begin):
                    yield f"{operation}: went beyond its end"


class RefusedNowhere(Checker):
    """An append that was refused is not in the log, and nothing is in it that nobody appended."""

    law = "law 10"
    beyond = True

    def check(self, history: History) -> Iterator[str]:
        for topic in history.topics():
            owner = _owners(history, history.copies.get(topic, topic))
            in_tasks = {row for task in history.tasks for row in task.rows}
            for _, seen, who in history.sightings(topic):
                if seen.data in in_tasks:
                    continue
                if seen.data not in owner:
                    yield f"nobody appended {_entry(seen)}, seen by {who}"
                elif owner[seen.data][0].outcome is CallOutcome.REJECTED:
                    yield f"{owner[seen.data][0]}, and yet {_entry(seen)} was seen by {who}"


class ReplicasAgree(Checker):
    """All replicas of a stream hold the same bytes in the same order, and it is what the clients see."""

    law = "law 2, law 3"

    def check(self, history: History) -> Iterator[str]:
        for ending in history.endings:
            for stream, replicas in ending.replicas.items():
                seen = [one for one in ending.entries if one.stream == stream]
                for node, stored in replicas.items():
                    mine = [one for one in stored if one.glsn > ending.trimmed]
                    if [(one.glsn, one.llsn, one.data) for one in mine] != [(a, b, d) for a, b, _, d in seen]:
                        yield f"stream {stream} on {node} differs from what clients read: {_difference(mine, seen)}"
                names = list(replicas)
                for other in names[1:]:
                    one, two = replicas[names[0]], replicas[other]
                    if one != two:
                        at = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), -1)
                        pair = f"{one[at]} and {two[at]}" if at >= 0 else f"{len(one)} and {len(two)} entries"
                        yield f"stream {stream} differs on {names[0]} and {other}: {pair}"


class DisksWhole(Checker):
    """A replica of a healed cluster is on its disk as well: the next start finds all of it."""

    law = "law 1, law 10"

    def check(self, history: History) -> Iterator[str]:
        yield from history.not_whole


class TrimsExact(Checker):
    """A trim that was answered holds for every later read, and nothing above the newest trim ever goes."""

    law = "law 9, R-TRIM-1"
    beyond = True

    def check(self, history: History) -> Iterator[str]:
        for topic in history.topics():
            trims = [one for one in history.of(topic) if isinstance(one, TrimCall)]
            known = KnownTail(history, topic)
            for operation in history.of(topic):
                healed = history.healed is not None and operation.started > history.healed
                yield from self._check_one(operation, trims, known, healed)
            for ending in history.endings:
                if ending.topic != topic:
                    continue
                done = [trim for trim in trims if trim.outcome is CallOutcome.DONE and not trim.forgettable]
                acknowledged = max((trim.glsn for trim in done), default=0)
                asked = max(
                    (trim.glsn for trim in trims if trim.outcome is not CallOutcome.REJECTED), default=0
                )
                if not acknowledged <= ending.trimmed <= asked:
                    yield (
                        f"topic {topic} ends trimmed up to {ending.trimmed}; acknowledged was {acknowledged}, "
                        f"the most that was asked is {asked}"
                    )

    def _check_one(
        self, operation: ClientCall, trims: list[TrimCall], known: KnownTail, healed: bool
    ) -> Iterator[str]:
        if isinstance(operation, ReadCall):
            if operation.outcome is CallOutcome.TRIMMED and operation.glsn > _asked(trims, operation.ended):
                yield f"{operation}, but nobody had trimmed so far"
            answered = _answered(trims, operation.started, everywhere=healed)
            if operation.got is not None and operation.got.glsn <= answered:
                yield f"{operation}, but a trim of it had been answered before"
        elif isinstance(operation, SubscribeCall):
            following = operation.got[-1][1].glsn + 1 if operation.got else operation.begin
            if operation.outcome is CallOutcome.TRIMMED and following > _asked(trims, operation.ended):
                yield f"{operation} at {following}, but nobody had trimmed so far"
            # A subscription begins with a question to the repository, which knows of every trim it answered.
            if operation.got and operation.begin <= _answered(trims, operation.started, everywhere=True):
                yield f"{operation} got {operation.begin}, but a trim of it had been answered before"
        elif (
            isinstance(operation, TrimCall)
            and operation.beyond_tail
            and operation.glsn <= known.before(operation.started)
        ):
            yield f"{operation} was refused as beyond the tail, but that position was known before"


class TrimsStay(Checker):
    """Every replica has every trim on its disk at the end, the one that was away, synced or rebuilt, too."""

    law = "law 9, R-SYNC-3"

    def check(self, history: History) -> Iterator[str]:
        for ending in history.endings:
            for stream, nodes in ending.trims.items():
                for node, trimmed in nodes.items():
                    if trimmed != ending.trimmed:
                        yield (
                            f"topic {ending.topic} is trimmed up to {ending.trimmed}, its stream {stream} on {node} "
                            f"up to {trimmed}"
                        )
                    for one in ending.replicas.get(stream, {}).get(node, ()):
                        if one.glsn <= trimmed:
                            yield f"stream {stream} on {node} still shows position {one.glsn}, trimmed up to {trimmed}"
                            break


class SealFinal(Checker):
    """Where an epoch was said to begin it begins: nothing of an older one is ordered behind it, nothing newer before it. Epochs do
    not fall within a stream, whether or not their beginning was observed."""

    law = "law 6, law 7, R-SEAL-3"
    beyond = True

    def check(self, history: History) -> Iterator[str]:
        held = {stream for ending in history.endings for stream in ending.replicas}
        for stream in sorted({*history.seals, *history.orders, *held}):
            ordered = [
                (llsn, order.epoch, f"ordered by {order.who}") for llsn, order in _orders(history, stream)
            ]
            stored = [
                [(one.llsn, one.batch[0], f"stored on {node}") for one in entries]
                for ending in history.endings
                for node, entries in ending.replicas.get(stream, {}).items()
            ]
            for entries in (sorted(ordered), *stored):
                for (llsn, epoch, _), (behind, newer, where) in pairwise(entries):
                    if newer < epoch:
                        yield (
                            f"stream {stream} llsn {llsn} is of epoch {epoch}, "
                            f"but llsn {behind} of epoch {newer} is {where}"
                        )
                        break
            for epoch, begin in history.seals.get(stream, {}).items():
                for llsn, of_epoch, where in (one for entries in (ordered, *stored) for one in entries):
                    if (of_epoch < epoch) != (llsn < begin):
                        yield (
                            f"epoch {epoch} of stream {stream} begins at {begin}, "
                            f"but llsn {llsn} of epoch {of_epoch} is {where}"
                        )
                        break


class DeposedPowerless(Checker):
    """What any repository published of the order holds forever: its successor contradicts nothing of it."""

    law = "law 3, law 7"
    beyond = True

    def check(self, history: History) -> Iterator[str]:
        yield from history.contradictions
        final = {(seen.stream, seen.llsn): seen.glsn for ending in history.endings for seen in ending.entries}
        trimmed = {seen.stream: ending.trimmed for ending in history.endings for seen in ending.entries}
        for stream, oldest in trimmed.items():
            for llsn, order in _orders(history, stream):
                at = final.get((stream, llsn))
                if order.glsn > oldest and at != order.glsn:
                    yield f"{order.who} ordered stream {stream} llsn {llsn} at {order.glsn}, at the end it is at {at}"


class WatermarksMonotone(Checker):
    """The tail never goes back in real time, and a position that is known is never `not written` again."""

    law = "R-CTX-1, law 5"
    beyond = True

    def check(self, history: History) -> Iterator[str]:
        for topic in history.topics():
            known = KnownTail(history, topic)
            newest = max((ending.tail for ending in history.endings if ending.topic == topic), default=None)
            for operation in history.of(topic):
                before = known.before(operation.started)
                if isinstance(operation, TailCall) and operation.glsn is not None:
                    if operation.glsn < before:
                        yield f"{operation}, but position {before} was known before"
                    if (
                        newest is not None
                        and operation.glsn > newest
                        and operation.topic not in history.sequenced
                    ):
                        yield f"{operation}, but the last tail of all is {newest}"
                elif (
                    isinstance(operation, ReadCall)
                    and operation.outcome is CallOutcome.NOT_WRITTEN
                    and 0 < operation.glsn <= before
                ):
                    yield f"{operation}, but position {before} was known before"


class TasksOnce(Checker):
    """The rows of a finished task are in the log once, however many attempts wrote them; those of another at most once."""

    law = "R-USE-4, R-ORD-7"

    def check(self, history: History) -> Iterator[str]:
        for task in history.tasks:
            ending = next((one for one in history.endings if one.topic == task.topic), None)
            if ending is None:
                continue
            places: dict[bytes, list[Seen]] = {row: [] for row in task.rows}
            for seen in ending.entries:
                if seen.data in places:
                    places[seen.data].append(seen)
            name, trimmed = f"task {task.producer} in stream {task.stream}", ending.trimmed > task.after
            for row, at in places.items():
                if len(at) > 1:
                    yield f"{name}: a row is in the log {len(at)} times: {', '.join(map(_entry, at))}"
                if not at and task.finished and not trimmed:
                    yield f"{name} is finished, and a row of it is nowhere: {row!r}"
                if any(one.glsn <= task.after or one.stream != task.stream for one in at):
                    yield f"{name} begins above {task.after}, and {_entry(at[0])} is elsewhere"
            if task.failure and not trimmed:
                yield f"{name} cannot be finished in a healed cluster: {task.failure}"


class CopiesEqual(Checker):
    """A copy has the entries of its source, each at the same position."""

    law = "R-USE-4"

    def check(self, history: History) -> Iterator[str]:
        endings = {ending.topic: ending for ending in history.endings}
        for copy, source in history.copies.items():
            if copy not in endings or source not in endings:
                continue
            original = {seen.glsn: seen for seen in endings[source].entries}
            for seen in endings[copy].entries:
                known = original.get(seen.glsn)
                if seen.glsn > endings[source].trimmed and (known is None or known.data != seen.data):
                    yield f"{copy} has {_entry(seen)}, and in {source} {_at(original, seen.glsn)}"
                if seen.llsn != seen.glsn - history.first + 1:
                    yield f"{copy} has {_entry(seen)} at another place than its position says"


class WordsKept(Checker):
    """What a named reader or writer was promised holds: a batch is begun in one way, a position never falls, no trim passes it."""

    law = "law 10"

    def check(self, history: History) -> Iterator[str]:
        yield from history.broken_words


class DeadlinesKept(Checker):
    """Every call ends by its deadline, with an answer or an honest error."""

    law = "law 10, house rule 4"
    beyond = True

    def check(self, history: History) -> Iterator[str]:
        for operation in history.operations:
            if operation.abandoned:
                continue
            if operation.ended_s is None:
                yield f"{operation} was asked at {operation.started_s:.3f} s and never ended"
            elif operation.ended_s > operation.deadline_s + history.deadline_slack_s:
                yield (
                    f"{operation} was to end by {operation.deadline_s:.3f} s and ended at {operation.ended_s:.3f} s"
                )


class Heals(Checker):
    """Once the faults stop, the cluster runs again without a human: every stream runs and takes appends."""

    law = "R-FAIL-1"

    def check(self, history: History) -> Iterator[str]:
        yield from history.trouble


class StoppedWhereDue(Checker):
    """A topic is STOPPED only while a node may know its order better than the repository: after the repository's files were
    harmed, or while nodes could not be asked; and not any more once its order was taken from the nodes."""

    law = "law 3, R-FAIL-1"

    def check(self, history: History) -> Iterator[str]:
        for operation in history.operations:
            if STOPPED not in operation.message:
                continue
            for event, what in (
                (history.adopted, "its order was taken from the nodes"),
                (history.healed, "all was well"),
            ):
                if event is not None and operation.started > event:
                    yield f"{operation}, although {what} before"
            harms = history.store_harms
            if harms is None or MISSED in operation.message or operation.ended is None:
                continue
            if not any(event < operation.ended for event in harms):
                yield f"{operation}, although nothing had harmed the repository's files"


class GrayStaysLocal(Checker):
    """While one host is slow, topics and streams that have nothing on it keep their throughput; one whose disk stays slow loses
    its primaries.

    A stream is compared with its fair share of what the topic had before, not with what it had: which of two streams that are alike
    gets more is chance. A topic of which one stream is slow may lose what tries that stream: see KEPT_BESIDE.
    """

    law = "R-FAIL-1"

    def check(self, history: History) -> Iterator[str]:
        for window in history.windows:
            done = [
                one
                for one in history.of(window.topic)
                if isinstance(one, AppendCall) and one.outcome is CallOutcome.DONE and one.first is not None
            ]
            there = [one for one in done if window.stream in (0, one.first and one.first.stream)]
            _, slow = _within(window, there)
            all_before, all_slow = _within(window, done)
            fair = window.share * all_before
            # A stream may get less because the client chose the other one, and then nothing is lost.
            lost = all_slow < (KEPT_BY_CHANCE if window.stream else KEPT_SHARE) * all_before
            if lost and slow < KEPT_SHARE * fair:
                what = f"stream {window.stream} of topic" if window.stream else "topic"
                yield (
                    f"{what} {window.topic} has nothing on {window.slow}, and had {slow} appends while that was slow, "
                    f"{fair:.0f} were its share before"
                )
            if window.stream and all_slow < KEPT_BESIDE * all_before:
                yield (
                    f"topic {window.topic} had {all_slow} appends while {window.slow} was slow, {all_before} before, although "
                    f"stream {window.stream} has nothing on it"
                )
        yield from history.slow_primaries


def _within(window: Window, appends: Sequence[AppendCall]) -> tuple[int, int]:
    """How many of them ended before the host was slow, and meanwhile."""
    ends = [one.ended_s for one in appends if one.ended_s is not None]
    before = sum(window.before_begin_s <= end < window.before_end_s for end in ends)
    return before, sum(window.slow_begin_s <= end < window.slow_end_s for end in ends)


class CalmSucceeds(Checker):
    """Where nothing was broken on purpose, nothing fails: every call is answered, every subscriber gets what is there."""

    law = "law 10, R-ORD-6, R-READ-3"

    def check(self, history: History) -> Iterator[str]:
        if not history.calm:
            return
        for topic in history.topics():
            known = KnownTail(history, topic)
            for operation in history.of(topic):
                if isinstance(operation, SubscribeCall):
                    there = operation.end is not None and operation.end <= known.before(operation.started) + 1
                    patient = operation.deadline_s - operation.started_s >= PATIENCE_S
                    failed = operation.outcome is CallOutcome.FAILED or (
                        operation.outcome is CallOutcome.OPEN and there and patient
                    )
                else:
                    refused = operation.outcome is CallOutcome.REJECTED
                    beyond_tail = isinstance(operation, TrimCall) and (
                        operation.beyond_tail or operation.respectful
                    )
                    failed = operation.outcome in (CallOutcome.OPEN, CallOutcome.UNKNOWN, CallOutcome.FAILED)
                    failed = failed or (refused and not beyond_tail)
                if failed and not _overtaken_by_trim(history, operation):
                    yield f"{operation}, although nothing was broken"


def _overtaken_by_trim(history: History, operation: ClientCall) -> bool:
    """An append of a sequenced topic has its position before it is written: a trim may come in between, and is the last thing that
    a client can know of it."""
    if operation.topic not in history.sequenced or not isinstance(operation, AppendCall):
        return False
    if operation.outcome is not CallOutcome.UNKNOWN:
        return False
    end = operation.ended
    return any(
        isinstance(trim, TrimCall)
        and trim.outcome is CallOutcome.DONE
        and trim.ended is not None
        and trim.ended > operation.started
        and (end is None or trim.started < end)
        for trim in history.of(operation.topic)
    )


class NothingBreaks(Checker):
    """No invariant of ours breaks, no replica freezes, no task dies unseen."""

    law = "house rule 3"
    beyond = True

    def check(self, history: History) -> Iterator[str]:
        yield from history.complaints


CHECKERS: tuple[Checker, ...] = (
    AcknowledgedSurvives(),
    RightOrSaid(),
    OneEntryOnePosition(),
    Immutable(),
    Dense(),
    BeginsAtFirst(),
    BatchesAtomic(),
    RealTimeOrder(),
    SubscribersSeePrefixes(),
    RefusedNowhere(),
    ReplicasAgree(),
    DisksWhole(),
    TrimsExact(),
    TrimsStay(),
    SealFinal(),
    DeposedPowerless(),
    WatermarksMonotone(),
    TasksOnce(),
    CopiesEqual(),
    WordsKept(),
    DeadlinesKept(),
    Heals(),
    GrayStaysLocal(),
    StoppedWhereDue(),
    CalmSucceeds(),
    NothingBreaks(),
    *SEQUENCED_CHECKERS,
)

# One violation brings many others with it; the first few of each property are enough.
REPORTED_MAX = 3


def check_history(history: History) -> list[tuple[Checker, str]]:
    """Every violation, by property."""
    found: list[tuple[Checker, str]] = []
    for checker in CHECKERS:
        if history.beyond and not checker.beyond:
            continue
        for number, violation in enumerate(checker.check(history)):
            if number == REPORTED_MAX:
                break
            found.append((checker, violation))
    return found


def _owners(history: History, topic: str) -> dict[bytes, tuple[AppendCall, int]]:
    """Who appended each entry: entries of a workload are unique."""
    return {
        data: (operation, index)
        for operation in history.of(topic)
        if isinstance(operation, AppendCall)
        for index, data in enumerate(operation.entries)
    }


def _orders(history: History, stream: int) -> list[tuple[int, OrderedAt]]:
    return list(history.orders.get(stream, {}).items())


def _asked(trims: list[TrimCall], event: int | None) -> int:
    """The highest position whose trim was asked for before `event`."""
    asked = (trim for trim in trims if trim.outcome is not CallOutcome.REJECTED)
    return max((trim.glsn for trim in asked if event is None or trim.started < event), default=0)


def _answered(trims: list[TrimCall], event: int, *, everywhere: bool) -> int:
    """The highest position whose trim was acknowledged before `event`. Unless `everywhere`, those that a living node may not
    have learned of do not count."""
    done = (
        trim
        for trim in trims
        if trim.outcome is CallOutcome.DONE and (trim.binding or everywhere) and not trim.forgettable
    )
    return max((trim.glsn for trim in done if trim.ended is not None and trim.ended < event), default=0)


def _entry(seen: Seen) -> str:
    name = seen.data[:24].split(b"|")[0].decode(errors="replace")
    return f"{name!r} at {seen.glsn} (stream {seen.stream} llsn {seen.llsn})"


def _at(final: dict[int, Seen], glsn: int) -> str:
    found = final.get(glsn)
    return f"there is {_entry(found)}" if found is not None else f"there is nothing at {glsn}"


def _difference(stored: list[StoredEntry], seen: list[Seen]) -> str:
    for one, two in zip(stored, seen, strict=False):
        if (one.glsn, one.llsn, one.data) != (two.glsn, two.llsn, two.data):
            return f"stored {_entry(Seen(one.glsn, one.llsn, two.stream, one.data))}, read {_entry(two)}"
    return f"{len(stored)} entries are stored, {len(seen)} were read"
