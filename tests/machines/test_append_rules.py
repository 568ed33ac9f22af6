"""Law 10 as a table: what each error says of an append."""

from __future__ import annotations

import pytest

from varlog.client.append_rules import Verdict, judge, spent, unknown
from varlog.model import errors
from varlog.model.epoch import Epoch
from varlog.model.errors import VarlogError
from varlog.model.ids import ClusterID, LogStreamID
from varlog.rpc.transport import CallTimeout, ConnectionLost

STREAM = LogStreamID(3)

TABLE: list[tuple[VarlogError, Verdict]] = [
    (errors.Sealed(STREAM), Verdict.AGAIN),
    (errors.NotPrimary(STREAM), Verdict.AGAIN),
    (errors.StaleEpoch(STREAM, Epoch(1), Epoch(2)), Verdict.AGAIN),
    (errors.NotAccepted("too much waits"), Verdict.AGAIN),
    (errors.Rejected("whatever a later version adds"), Verdict.AGAIN),
    (errors.NotInCluster(ClusterID(1), ClusterID(2)), Verdict.AGAIN),
    (errors.UnknownLogStream(STREAM), Verdict.AGAIN),
    (errors.CorruptBatch("damaged on the way"), Verdict.AGAIN),
    (errors.EmptyBatch(), Verdict.REFUSED),
    (errors.EntryTooLarge(9, 8), Verdict.REFUSED),
    (errors.BatchTooLarge("bytes", 9, 8), Verdict.REFUSED),
    (errors.UnknownTopic("x"), Verdict.REFUSED),
    (errors.InvalidRequest("x"), Verdict.REFUSED),
    (ConnectionLost("broke"), Verdict.UNKNOWN),
    (CallTimeout("late"), Verdict.UNKNOWN),
    (errors.OutcomeUnknown("the primary cannot say"), Verdict.UNKNOWN),
    (errors.Unavailable("the handler failed"), Verdict.UNKNOWN),
    (errors.Refused("x"), Verdict.UNKNOWN),
    (errors.NotWritten(1, 0), Verdict.UNKNOWN),
]


@pytest.mark.parametrize(("error", "verdict"), TABLE, ids=lambda x: type(x).__name__)
def test_an_error_after_sending_says_this(error: VarlogError, verdict: Verdict) -> None:
    assert judge(error, sent=True) is verdict


@pytest.mark.parametrize("error", [error for error, _ in TABLE], ids=lambda x: type(x).__name__)
def test_what_was_never_sent_is_certainly_not_in_the_log(error: VarlogError) -> None:
    assert judge(error, sent=False) is Verdict.AGAIN


def test_only_what_is_rejected_is_ever_told_as_rejected() -> None:
    for error, verdict in TABLE:
        if verdict is Verdict.UNKNOWN:
            assert isinstance(unknown(error), errors.OutcomeUnknown)
            assert not isinstance(unknown(error), errors.Rejected)


def test_the_deadline_of_an_append_to_a_chosen_stream_tells_its_last_refusal() -> None:
    sealed = errors.Sealed(STREAM)
    assert spent(STREAM, sealed, 2.0) is sealed
    assert str(spent(STREAM, None, 2.0)) == "nothing was appended: log stream 3 never took it within 2 s"


def test_the_deadline_of_an_append_to_any_stream_is_not_accepted_and_says_why() -> None:
    told = spent(None, errors.Sealed(STREAM), 2.0)
    assert isinstance(told, errors.NotAccepted)
    assert "no log stream of the topic took it within 2 s" in str(told)
    assert "log stream 3 is sealed" in str(told)
