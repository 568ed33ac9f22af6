"""Every checker accepts a good history and rejects a small bad one: a checker that never fires would prove nothing."""

from __future__ import annotations

import pytest

from varlog.verify import checkers, sequenced_checkers
from varlog.verify.checkers import CHECKERS, MISSED, CalmSucceeds, check_history
from varlog.verify.history import (
    STOPPED,
    AppendCall,
    CallOutcome,
    Checker,
    ClientCall,
    Ending,
    HarmAccount,
    History,
    IdempotentWrite,
    ReadCall,
    Seen,
    StoredEntry,
    SubscribeCall,
    TailCall,
    TrimCall,
    Window,
)

TOPIC = "t"
A, B, C, D = (Seen(glsn, glsn, 1, name) for glsn, name in enumerate((b"a", b"b", b"c", b"d"), 1))


class Story(History):
    """A history written by hand: every operation starts after the one before it ended."""

    def add(self, operation: ClientCall, outcome: CallOutcome = CallOutcome.DONE) -> ClientCall:
        operation.topic, operation.client = TOPIC, "c1"
        operation.started = self.event()
        operation.ended = self.event()
        operation.ended_s, operation.outcome = 1.0, outcome
        if isinstance(operation, SubscribeCall):
            operation.got = [(self.event(), seen) for _, seen in operation.got]
        self.operations.append(operation)
        return operation

    def append(self, seen: Seen, *more: bytes, outcome: CallOutcome = CallOutcome.DONE) -> ClientCall:
        first = seen if outcome is CallOutcome.DONE else None
        return self.add(AppendCall(topic="", client="", entries=(seen.data, *more), first=first), outcome)

    def read(self, glsn: int, got: Seen | None, outcome: CallOutcome = CallOutcome.DONE) -> ClientCall:
        return self.add(ReadCall(topic="", client="", glsn=glsn, got=got), outcome)

    def subscribe(
        self, begin: int, end: int | None, *got: Seen, outcome: CallOutcome = CallOutcome.DONE
    ) -> ClientCall:
        came = [(0, seen) for seen in got]
        return self.add(SubscribeCall(topic="", client="", begin=begin, end=end, got=came), outcome)

    def trim(
        self, glsn: int, outcome: CallOutcome = CallOutcome.DONE, *, beyond_tail: bool = False
    ) -> ClientCall:
        return self.add(TrimCall(topic="", client="", glsn=glsn, beyond_tail=beyond_tail), outcome)

    def tail(self, glsn: int) -> ClientCall:
        return self.add(TailCall(topic="", client="", glsn=glsn))

    def end(self, *entries: Seen, trimmed: int = 0, tail: int | None = None) -> Ending:
        newest = entries[-1].glsn if entries else trimmed
        ending = Ending(TOPIC, trimmed, newest if tail is None else tail, list(entries))
        stored = [StoredEntry(one.llsn, one.glsn, (1,), one.data) for one in entries]
        ending.replicas = {1: {"sn1": stored, "sn2": list(stored)}}
        ending.trims = {1: {"sn1": trimmed, "sn2": trimmed}}
        self.endings.append(ending)
        return ending


def good() -> Story:
    """A bit of everything, and all of it right."""
    story = Story()
    story.append(A)
    story.tail(1)
    story.append(Seen(2, 2, 1, b"b"), b"c")
    story.append(D, outcome=CallOutcome.UNKNOWN)  # was stored all the same
    story.append(Seen(0, 0, 1, b"x"), outcome=CallOutcome.UNKNOWN)  # was not
    story.append(Seen(0, 0, 1, b"y"), outcome=CallOutcome.REJECTED)
    story.read(2, B)
    story.read(9, None, CallOutcome.NOT_WRITTEN)
    story.subscribe(1, 4, A, B, C)
    story.subscribe(2, None, B, outcome=CallOutcome.OPEN).abandoned = True
    story.trim(9, CallOutcome.REJECTED, beyond_tail=True)
    story.trim(1)
    story.read(1, None, CallOutcome.TRIMMED)
    story.subscribe(1, 3, outcome=CallOutcome.TRIMMED)
    story.tail(4)
    story.record_order(1, 1, 1, 3, 1, "mr#1")
    story.record_order(1, 3, 3, 2, 1, "mr#2")
    story.record_seal(1, 1, 1)
    story.record_seal(1, 2, 5)
    story.end(B, C, D, trimmed=1)
    return story


def violations(story: History) -> set[str]:
    return {checker.name for checker, _ in check_history(story)}


def test_a_good_history_is_accepted_by_every_checker() -> None:
    assert check_history(good()) == []


def test_a_topic_may_be_stopped_while_its_order_is_in_doubt() -> None:
    """After the repository's files were harmed; and, whatever happened, while no replica of a log stream could be asked."""
    story = Story()
    story.store_harms = []
    _stopped(story, f"no replica of log stream 1 {MISSED}")
    story.store_harms.append(story.event())
    _stopped(story)
    story.adopted = story.event()
    assert check_history(story) == []


def _lost_with_its_disk() -> History:
    story = good()
    story.not_whole.append("/v/lsid=1 on sn1 is not whole at the end: commits.log is missing")
    return story


def test_every_checker_cites_its_law_and_is_in_the_list() -> None:
    found = [*vars(checkers).values(), *vars(sequenced_checkers).values()]
    made = {kind for kind in found if isinstance(kind, type) and issubclass(kind, Checker)} - {Checker}
    assert {type(checker) for checker in CHECKERS} == made
    assert all(checker.law and type(checker).__doc__ for checker in CHECKERS)


def _lost() -> Story:
    story = Story()
    story.append(A)
    story.append(B)
    story.end(A)
    return story


def _read_and_lost() -> Story:
    story = Story()
    story.append(A, outcome=CallOutcome.UNKNOWN)
    story.read(1, A)
    story.end()
    return story


def _doubled() -> Story:
    story = Story()
    story.append(A, outcome=CallOutcome.UNKNOWN)
    story.end(A, Seen(2, 2, 1, b"a"))
    return story


def _position_given_twice() -> Story:
    story = Story()
    story.append(A)
    story.append(Seen(1, 1, 2, b"b"))
    story.end(A)
    return story


def _changed_under_a_reader() -> Story:
    story = Story()
    story.append(A, outcome=CallOutcome.UNKNOWN)
    story.append(B, outcome=CallOutcome.UNKNOWN)
    story.read(1, Seen(1, 1, 1, b"b"))
    story.end(A, Seen(2, 2, 1, b"b"))
    return story


def _local_order_differs() -> Story:
    story = Story()
    story.append(A)
    story.append(Seen(2, 1, 1, b"b"))
    story.end(A, Seen(2, 1, 1, b"b"))
    return story


def _gap() -> Story:
    story = Story()
    story.append(A)
    story.append(C)
    story.end(A, C)
    return story


def _gap_at_the_tail() -> Story:
    story = Story()
    story.append(A)
    story.end(A, tail=2)
    return story


def _gap_in_a_stream() -> Story:
    story = Story()
    story.append(A)
    story.append(Seen(2, 3, 1, b"b"))
    story.end(A, Seen(2, 3, 1, b"b"))
    return story


def _torn_batch() -> Story:
    story = Story()
    story.append(A, b"b", outcome=CallOutcome.UNKNOWN)
    story.end(A)
    return story


def _interleaved_batch() -> Story:
    story = Story()
    story.append(A, b"c", outcome=CallOutcome.UNKNOWN)
    story.append(B)
    story.end(A, B, C)
    return story


def _late_append_in_front() -> Story:
    story = Story()
    story.append(B)
    story.append(Seen(1, 1, 2, b"a"))
    story.end(Seen(1, 1, 2, b"a"), B)
    return story


def _unknown_append_in_front_of_a_returned_tail() -> Story:
    story = Story()
    story.tail(2)
    story.append(A, outcome=CallOutcome.UNKNOWN)
    story.append(B, outcome=CallOutcome.UNKNOWN)
    story.end(A, B)
    return story


def _skipped() -> Story:
    story = good()
    story.subscribe(2, None, B, D, outcome=CallOutcome.OPEN)
    return story


def _repeated() -> Story:
    story = good()
    story.subscribe(2, None, B, C, C, D, outcome=CallOutcome.OPEN)
    return story


def _ended_early() -> Story:
    story = good()
    story.subscribe(2, 4, B)
    return story


def _beyond_its_end() -> Story:
    story = good()
    story.subscribe(2, 3, B, C)
    return story


def _refused_and_there() -> Story:
    story = Story()
    story.append(A, outcome=CallOutcome.REJECTED)
    story.end(A)
    return story


def _invented() -> Story:
    story = Story()
    story.append(A)
    story.end(A, B)
    return story


def _replica_differs() -> Story:
    story = good()
    replicas = story.endings[0].replicas[1]
    replicas["sn2"] = [*replicas["sn2"][:-1], replicas["sn2"][-1]._replace(batch=(2,))]
    return story


def _replicas_differ_from_clients() -> Story:
    story = good()
    for stored in story.endings[0].replicas[1].values():
        stored.pop()
    return story


def _read_below_a_trim() -> Story:
    story = good()
    story.read(1, A)
    return story


def _subscribed_below_a_trim() -> Story:
    story = good()
    story.subscribe(1, 3, A, B)
    return story


def _trimmed_too_much() -> Story:
    story = good()
    story.read(2, None, CallOutcome.TRIMMED)
    return story


def _subscriber_got_a_trim_that_never_was() -> Story:
    story = good()
    story.subscribe(2, 4, B, outcome=CallOutcome.TRIMMED)
    return story


def _trim_undone() -> Story:
    story = Story()
    story.append(A)
    story.append(B)
    story.trim(1)
    story.end(A, B)
    return story


def _ends_trimmed_beyond_what_was_requested() -> Story:
    story = Story()
    story.append(A)
    story.append(B)
    story.trim(1)
    story.end(trimmed=2)
    return story


def _trim_refused_wrongly() -> Story:
    story = good()
    story.trim(3, CallOutcome.REJECTED, beyond_tail=True)
    return story


def _trim_forgotten_by_a_replica() -> Story:
    story = good()
    story.endings[0].trims[1]["sn2"] = 0
    return story


def _trimmed_entry_on_disk() -> Story:
    story = good()
    for stored in story.endings[0].replicas[1].values():
        stored.insert(0, StoredEntry(1, 1, (1,), b"a"))
    return story


def _ordered_behind_its_seal() -> Story:
    story = good()
    story.record_order(1, 5, 5, 1, 1, "mr#1")
    return story


def _stored_behind_its_seal() -> Story:
    story = good()
    story.seals[1][2] = 4
    return story


def _newer_epoch_before_its_seal() -> Story:
    story = good()
    for stored in story.endings[0].replicas[1].values():
        stored[-1] = stored[-1]._replace(batch=(2,))
    return story


def _ordered_in_an_older_epoch_behind_a_newer_one() -> Story:
    story = good()
    story.seals.clear()  # as where the repository's store went back in time
    story.record_order(1, 5, 5, 1, 2, "mr#1")
    story.record_order(1, 6, 6, 1, 1, "mr#1")
    return story


def _stored_in_an_older_epoch_behind_a_newer_one() -> Story:
    story = good()
    story.seals.clear()
    story.orders.clear()
    for stored in story.endings[0].replicas[1].values():
        stored[0] = stored[0]._replace(batch=(2,))
    return story


def _epoch_begins_at_two_places() -> Story:
    story = good()
    story.record_seal(1, 2, 4)
    return story


def _deposed_and_ordered() -> Story:
    story = good()
    story.record_order(1, 4, 5, 1, 1, "mr#1")
    return story


def _deposed_and_written() -> Story:
    story = good()
    story.record_commit(3, 7)
    story.record_commit(5, 8)
    story.record_commit(3, 8)
    return story


def _ordered_and_gone() -> Story:
    story = good()
    story.record_order(1, 5, 5, 1, 2, "mr#1")
    return story


def _tail_went_back() -> Story:
    story = good()
    story.tail(3)
    return story


def _tail_ahead_of_the_log() -> Story:
    story = good()
    story.tail(5)
    return story


def _known_and_not_written() -> Story:
    story = good()
    story.read(3, None, CallOutcome.NOT_WRITTEN)
    return story


def _before_the_beginning() -> Story:
    story = good()
    story.first = 2
    return story


def _tail_before_the_beginning() -> Story:
    story = Story()
    story.first = 10
    story.tail(0)
    return story


def _broken_word() -> Story:
    story = good()
    story.broken_words.append("batch 3 was begun at 7, and at 9")
    return story


def _late() -> Story:
    story = good()
    story.operations[0].deadline_s, story.operations[0].ended_s = 1.0, 2.0
    return story


def _never_ended() -> Story:
    story = good()
    story.operations[0].ended_s = None
    return story


def _stopped(story: Story, why: str = "node 2 knows positions up to 9, the repository up to 4") -> Story:
    story.add(
        TailCall(topic="", client=""), CallOutcome.FAILED
    ).message = f"Refused: topic 't' {STOPPED}: {why}"
    return story


def _stopped_without_a_reason() -> Story:
    story = Story()
    story.store_harms = []
    return _stopped(story)


def _stopped_before_its_reason() -> Story:
    story = _stopped(Story())
    story.store_harms = [story.event()]
    return story


def _stopped_after_it_was_adopted() -> Story:
    story = Story()
    story.store_harms, story.adopted = [story.event()], story.event()
    return _stopped(story)


def _stopped_in_a_well_cluster() -> Story:
    story = Story()
    story.healed = story.event()
    return _stopped(story, f"no replica of log stream 1 {MISSED}")


def _ill() -> Story:
    story = good()
    story.trouble.append("stream 1 is sealed")
    return story


def _refused_in_the_calm() -> Story:
    story = good()
    story.calm = True
    story.operations = [one for one in story.operations if one.outcome is not CallOutcome.UNKNOWN]
    return story


def _unanswered_in_the_calm() -> Story:
    story = Story()
    story.calm = True
    story.append(A)
    subscription = story.subscribe(1, 2, outcome=CallOutcome.OPEN)
    subscription.deadline_s = 5.0
    story.end(A)
    return story


def _task(*entries: Seen, finished: bool = True, after: int = 0, failure: str = "") -> Story:
    """A task of rows a and b, and what is in the log at the end."""
    story = Story()
    story.append(Seen(0, 0, 1, b"x"), outcome=CallOutcome.UNKNOWN)
    story.tasks.append(IdempotentWrite(TOPIC, 1, 7, after, (b"a", b"b"), 1, finished, failure))
    story.end(*entries)
    return story


def _task_row_twice() -> Story:
    return _task(A, B, Seen(3, 3, 1, b"a"), finished=False)


def _finished_task_row_nowhere() -> Story:
    return _task(A)


def _task_row_before_its_beginning() -> Story:
    return _task(A, B, after=1)


def _task_cannot_be_finished() -> Story:
    return _task(A, finished=False, failure="nothing gets on")


def _copied(*copy: Seen) -> Story:
    story = Story()
    story.append(A)
    story.append(B)
    story.copies["copy"] = TOPIC
    story.end(A, B)
    story.endings.append(Ending("copy", 0, len(copy), list(copy)))
    return story


def _copied_out_of_order() -> Story:
    return _copied(Seen(1, 1, 2, b"b"))


def _copied_to_another_place() -> Story:
    return _copied(Seen(1, 2, 2, b"a"))


def test_a_task_half_written_and_a_copy_half_done_are_no_violation() -> None:
    assert check_history(_task(A, finished=False)) == []
    assert check_history(_task(A, B)) == []
    assert check_history(_copied(Seen(1, 1, 2, b"a"))) == []


def _broken() -> Story:
    story = good()
    story.complaints.append("broken invariant")
    return story


def _beyond(outcome: CallOutcome = CallOutcome.FAILED, *, shown: str = "", gone: str = "") -> Story:
    """Harm that replication does not survive: position 1 was acknowledged, and cannot be read any more."""
    story = Story()
    story.beyond = True
    story.append(A)
    read = story.read(1, None, outcome)
    assert isinstance(read, ReadCall)
    story.accounts.append(HarmAccount(TOPIC, shown, gone, [] if gone else [read]))
    return story


def _lost_as_trimmed() -> Story:
    return _beyond(CallOutcome.TRIMMED, shown="stream 1 does not run")


def _lost_as_junk() -> Story:
    return _beyond(CallOutcome.FILLED, shown="stream 1 does not run")


def _lost_as_not_written() -> Story:
    return _beyond(CallOutcome.NOT_WRITTEN, shown="stream 1 does not run")


def _lost_and_all_is_well() -> Story:
    return _beyond()


def _topic_gone_and_all_is_well() -> Story:
    return _beyond(gone="there is no topic 't'")


def _lost_and_given_again() -> Story:
    story = _beyond(shown="stream 1 does not run")
    story.append(A._replace(data=b"z"))
    return story


def test_a_loss_that_is_shown_is_no_violation_where_replication_does_not_survive() -> None:
    assert violations(_beyond(shown="stream 1 does not run")) == set()
    assert violations(_beyond(shown="mr refuses to start", gone="nobody answers")) == set()


def _slow_elsewhere_and_here() -> Story:
    story = Story()
    for number, end_s in enumerate((1.0, 2.0, 3.0, 12.0), 1):
        story.append(Seen(number, number, 1, b"%d" % number)).ended_s = end_s
    story.windows.append(Window(TOPIC, "sn3", 0.0, 10.0, 10.0, 20.0))
    return story


def _slow_in_another_stream_and_here() -> Story:
    story = Story()
    for number, (end_s, stream) in enumerate(
        ((1.0, 1), (2.0, 1), (3.0, 2), (4.0, 2), (12.0, 1), (13.0, 2)), 1
    ):
        story.append(Seen(number, (number + 1) // 2, stream, b"%d" % number)).ended_s = end_s
    story.windows.append(Window(TOPIC, "sn3", 0.0, 10.0, 10.0, 20.0, stream=1, share=0.5))
    return story


def _appended_to_two_streams(before: tuple[int, int], slow: tuple[int, int]) -> Story:
    """Appends to stream 1, which has nothing on the slow host, and to stream 2: these numbers of them."""
    story, llsns, number = Story(), {1: 0, 2: 0}, 0
    for end_s, counts in ((5.0, before), (15.0, slow)):
        for stream, count in enumerate(counts, 1):
            for _ in range(count):
                number += 1
                llsns[stream] += 1
                story.append(Seen(number, llsns[stream], stream, b"%d" % number)).ended_s = end_s
    story.windows.append(Window(TOPIC, "sn3", 0.0, 10.0, 10.0, 20.0, stream=1, share=0.5))
    return story


def _topic_slow_beside_a_sound_stream() -> Story:
    """Stream 1 has more than its share, and could have taken everything."""
    return _appended_to_two_streams((40, 40), (55, 4))


def test_a_stream_is_compared_with_its_share_and_not_with_what_it_had_by_chance() -> None:
    """Of 80 appends it had 56, and 48 of 67 while the other one was slow: more than its half of the 80."""
    assert "GrayStaysLocal" not in violations(_appended_to_two_streams((56, 24), (48, 19)))


def _primary_on_a_slow_disk() -> Story:
    story = Story()
    story.slow_primaries.append("stream 1 has its primary on sn3")
    return story


def test_appends_that_go_to_another_stream_are_not_lost() -> None:
    """The client chooses: a stream without the slow host gets less where another one gets more."""
    story = _slow_in_another_stream_and_here()
    for number, end_s in enumerate((14.0, 15.0), 4):
        story.append(Seen(number + 3, number, 2, b"more %d" % number)).ended_s = end_s
    assert "GrayStaysLocal" not in violations(story)


@pytest.mark.parametrize(
    ("story", "by"),
    [
        (_slow_elsewhere_and_here, "GrayStaysLocal"),
        (_slow_in_another_stream_and_here, "GrayStaysLocal"),
        (_topic_slow_beside_a_sound_stream, "GrayStaysLocal"),
        (_primary_on_a_slow_disk, "GrayStaysLocal"),
        (_lost_as_trimmed, "RightOrSaid"),
        (_lost_as_junk, "RightOrSaid"),
        (_lost_as_not_written, "RightOrSaid"),
        (_lost_and_all_is_well, "RightOrSaid"),
        (_topic_gone_and_all_is_well, "RightOrSaid"),
        (_lost_and_given_again, "RightOrSaid"),
        (_lost, "AcknowledgedSurvives"),
        (_read_and_lost, "AcknowledgedSurvives"),
        (_doubled, "OneEntryOnePosition"),
        (_position_given_twice, "Immutable"),
        (_changed_under_a_reader, "Immutable"),
        (_local_order_differs, "Immutable"),
        (_gap, "Dense"),
        (_gap_at_the_tail, "Dense"),
        (_gap_in_a_stream, "Dense"),
        (_torn_batch, "BatchesAtomic"),
        (_interleaved_batch, "BatchesAtomic"),
        (_late_append_in_front, "RealTimeOrder"),
        (_unknown_append_in_front_of_a_returned_tail, "RealTimeOrder"),
        (_skipped, "SubscribersSeePrefixes"),
        (_repeated, "SubscribersSeePrefixes"),
        (_ended_early, "SubscribersSeePrefixes"),
        (_beyond_its_end, "SubscribersSeePrefixes"),
        (_refused_and_there, "RefusedNowhere"),
        (_invented, "RefusedNowhere"),
        (_replica_differs, "ReplicasAgree"),
        (_replicas_differ_from_clients, "ReplicasAgree"),
        (_read_below_a_trim, "TrimsExact"),
        (_subscribed_below_a_trim, "TrimsExact"),
        (_trimmed_too_much, "TrimsExact"),
        (_subscriber_got_a_trim_that_never_was, "TrimsExact"),
        (_trim_undone, "TrimsExact"),
        (_ends_trimmed_beyond_what_was_requested, "TrimsExact"),
        (_trim_refused_wrongly, "TrimsExact"),
        (_trim_forgotten_by_a_replica, "TrimsStay"),
        (_trimmed_entry_on_disk, "TrimsStay"),
        (_ordered_behind_its_seal, "SealFinal"),
        (_stored_behind_its_seal, "SealFinal"),
        (_newer_epoch_before_its_seal, "SealFinal"),
        (_ordered_in_an_older_epoch_behind_a_newer_one, "SealFinal"),
        (_stored_in_an_older_epoch_behind_a_newer_one, "SealFinal"),
        (_epoch_begins_at_two_places, "DeposedPowerless"),
        (_deposed_and_ordered, "DeposedPowerless"),
        (_deposed_and_written, "DeposedPowerless"),
        (_ordered_and_gone, "DeposedPowerless"),
        (_tail_went_back, "WatermarksMonotone"),
        (_tail_ahead_of_the_log, "WatermarksMonotone"),
        (_known_and_not_written, "WatermarksMonotone"),
        (_before_the_beginning, "BeginsAtFirst"),
        (_tail_before_the_beginning, "BeginsAtFirst"),
        (_task_row_twice, "TasksOnce"),
        (_finished_task_row_nowhere, "TasksOnce"),
        (_task_row_before_its_beginning, "TasksOnce"),
        (_task_cannot_be_finished, "TasksOnce"),
        (_copied_out_of_order, "CopiesEqual"),
        (_copied_to_another_place, "CopiesEqual"),
        (_broken_word, "WordsKept"),
        (_late, "DeadlinesKept"),
        (_never_ended, "DeadlinesKept"),
        (_ill, "Heals"),
        (_stopped_without_a_reason, "StoppedWhereDue"),
        (_stopped_before_its_reason, "StoppedWhereDue"),
        (_stopped_after_it_was_adopted, "StoppedWhereDue"),
        (_stopped_in_a_well_cluster, "StoppedWhereDue"),
        (_refused_in_the_calm, "CalmSucceeds"),
        (_unanswered_in_the_calm, "CalmSucceeds"),
        (_broken, "NothingBreaks"),
        (_lost_with_its_disk, "DisksWhole"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__.strip("_"),
)
def test_a_bad_history_is_rejected(story: object, by: str) -> None:
    assert callable(story)
    assert by in violations(story())


def test_an_append_that_was_abandoned_by_its_client_may_stay_open() -> None:
    story = good()
    story.operations[0].ended_s, story.operations[0].abandoned = None, True
    assert check_history(story) == []


@pytest.mark.parametrize("sequenced", [True, False])
def test_an_append_that_a_trim_overtook_may_be_unknown_in_a_sequenced_topic(sequenced: bool) -> None:
    """Its position is given before it is written."""
    story = Story()
    story.calm = True
    if sequenced:
        story.sequenced.add(TOPIC)
    unknown = story.append(A, outcome=CallOutcome.UNKNOWN)
    before = list(CalmSucceeds().check(story))
    trim = story.trim(9)
    unknown.ended = trim.ended
    after = list(CalmSucceeds().check(story))
    assert (len(before), len(after)) == (1, 0 if sequenced else 1)


def test_a_calm_history_in_which_everything_is_answered_is_accepted() -> None:
    story = Story()
    story.calm = True
    story.append(A)
    story.read(5, None, CallOutcome.NOT_WRITTEN)
    story.subscribe(1, None, A, outcome=CallOutcome.OPEN)
    story.trim(9, CallOutcome.REJECTED, beyond_tail=True)
    story.end(A)
    assert check_history(story) == []


def test_a_trim_that_a_node_without_a_session_may_not_know_binds_reads_only_once_all_is_healthy() -> None:
    """A trim is answered when every node in session has applied it."""
    story = Story()
    story.append(A)
    story.append(B)
    trim = story.trim(1)
    assert isinstance(trim, TrimCall)
    trim.binding = False
    story.read(1, A)
    story.end(B, trimmed=1)
    assert check_history(story) == []
    story.healed = story.event()
    story.read(1, A)
    assert violations(story) == {"TrimsExact"}


def test_the_digest_distinguishes_two_histories() -> None:
    assert good().digest() == good().digest() != _lost().digest()
