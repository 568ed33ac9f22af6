"""Law 10 as a table: what each error says of an append, and how an open outcome is found out."""

from __future__ import annotations

import pytest

from varlog.client.append_rules import (
    Attempt,
    ErrorClass,
    ResolveStep,
    classify,
    floor_of,
    resolve_step,
    spent,
    unknown,
)
from varlog.model import errors
from varlog.model.cluster import LogStream, StreamState
from varlog.model.epoch import Epoch
from varlog.model.errors import VarlogError
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import LLSN
from varlog.rpc.transport import CallTimeout, ConnectionLost

STREAM = LogStreamID(3)

TABLE: list[tuple[VarlogError, ErrorClass]] = [
    (errors.Sealed(STREAM), ErrorClass.AGAIN),
    (errors.NotPrimary(STREAM), ErrorClass.AGAIN),
    (errors.StaleEpoch(STREAM, Epoch(1), Epoch(2)), ErrorClass.AGAIN),
    (errors.NotAccepted("too much waits"), ErrorClass.AGAIN),
    (errors.Rejected("whatever a later version adds"), ErrorClass.AGAIN),
    (errors.NotInCluster(ClusterID(1), ClusterID(2)), ErrorClass.AGAIN),
    (errors.UnknownLogStream(STREAM), ErrorClass.AGAIN),
    (errors.CorruptBatch("damaged on the way"), ErrorClass.AGAIN),
    (errors.EmptyBatch(), ErrorClass.REFUSED),
    (errors.EntryTooLarge(9, 8), ErrorClass.REFUSED),
    (errors.BatchTooLarge("bytes", 9, 8), ErrorClass.REFUSED),
    (errors.UnknownTopic("x"), ErrorClass.REFUSED),
    (errors.InvalidRequest("x"), ErrorClass.REFUSED),
    (ConnectionLost("broke"), ErrorClass.UNKNOWN),
    (CallTimeout("late"), ErrorClass.UNKNOWN),
    (errors.OutcomeUnknown("the primary cannot say"), ErrorClass.UNKNOWN),
    (errors.Unavailable("the handler failed"), ErrorClass.UNKNOWN),
    (errors.PreconditionFailed("x"), ErrorClass.UNKNOWN),
    (errors.NotWritten(1, 0), ErrorClass.UNKNOWN),
]


@pytest.mark.parametrize(("error", "expected"), TABLE, ids=lambda x: type(x).__name__)
def test_an_error_after_sending_has_this_class(error: VarlogError, expected: ErrorClass) -> None:
    assert classify(error, sent=True) is expected


@pytest.mark.parametrize("error", [error for error, _ in TABLE], ids=lambda x: type(x).__name__)
def test_what_was_never_sent_is_certainly_not_in_the_log(error: VarlogError) -> None:
    assert classify(error, sent=False) is ErrorClass.AGAIN


def test_only_what_is_rejected_is_ever_reported_as_rejected() -> None:
    for error, expected in TABLE:
        if expected is ErrorClass.UNKNOWN:
            assert isinstance(unknown(error, 2.0), errors.OutcomeUnknown)
            assert not isinstance(unknown(error, 2.0), errors.Rejected)


def test_the_deadline_of_an_append_to_a_chosen_stream_reports_its_last_refusal() -> None:
    sealed = errors.Sealed(STREAM)
    assert spent(STREAM, sealed, 2.0) is sealed
    assert str(spent(STREAM, None, 2.0)) == "nothing was appended: log stream 3 never took it within 2 s"


def test_the_deadline_of_an_append_to_any_stream_is_not_accepted_with_the_reason() -> None:
    failure = spent(None, errors.Sealed(STREAM), 2.0)
    assert isinstance(failure, errors.NotAccepted)
    assert "no log stream of the topic took it within 2 s" in str(failure)
    assert "log stream 3 is sealed" in str(failure)


# --- An open outcome ----------------------------------------------------------------------------------------------------------

RUNNING, SEALED = StreamState.RUNNING, StreamState.SEALED


def stream(epoch: int, state: StreamState, sealed_end: int = 1) -> LogStream:
    return LogStream(STREAM, TopicID(1), (NodeID(1),), state, Epoch(epoch), LLSN(sealed_end))


@pytest.mark.parametrize(
    ("seen", "step"),
    [
        (stream(4, RUNNING), ResolveStep.AGAIN),
        (stream(5, SEALED), ResolveStep.ASK),
        (stream(5, RUNNING), ResolveStep.ASK),
        (stream(9, SEALED), ResolveStep.ASK),
        (stream(4, SEALED), ResolveStep.WAIT),  # it was unsealed in this epoch since: a newer view will say
        (stream(3, RUNNING), ResolveStep.WAIT),
        (None, ResolveStep.GONE),
    ],
)
def test_how_an_open_outcome_is_found_out_follows_from_the_newest_view(
    seen: LogStream | None, step: ResolveStep
) -> None:
    """R-ORD-7: the primary is asked again, or the sealed stream, and nobody else gets the batch before that."""
    assert resolve_step(Attempt(STREAM, Epoch(4), LLSN(7)), seen) is step


def test_what_is_sent_now_comes_above_what_was_acknowledged_and_above_the_last_seal() -> None:
    assert floor_of(stream(4, RUNNING, sealed_end=1), LLSN(0)) == 0
    assert floor_of(stream(4, RUNNING, sealed_end=8), LLSN(5)) == 7
    assert floor_of(stream(4, RUNNING, sealed_end=8), LLSN(9)) == 9


def test_an_unknown_outcome_names_what_failed_last() -> None:
    assert str(unknown(ConnectionLost("it broke"), 2.0)).endswith("not answered within 2 s (it broke)")
    assert str(unknown(None, 2.0)).endswith("not answered within 2 s")
