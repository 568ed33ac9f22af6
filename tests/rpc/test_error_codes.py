"""Errors over the wire: the same class with the same facts, or Unavailable; never something else."""

from __future__ import annotations

import logging
from pathlib import PurePosixPath

import pytest

from tests.rpc.samples import ERROR_SAMPLES
from varlog.model import errors
from varlog.model.errors import CorruptReplica, EntryTooLarge, Unavailable, VarlogError
from varlog.rpc.codec import decode, encode, number_of
from varlog.rpc.error_codes import ERROR_CODES, code_of, error_of, failure_of
from varlog.rpc.messages import Failure
from varlog.rpc.transport import ConnectionLost


def over_the_wire(error: BaseException) -> VarlogError:
    failure = decode(number_of[Failure], encode(failure_of(error)))
    assert isinstance(failure, Failure)
    return error_of(failure)


def _tree(kind: type[VarlogError]) -> list[type[VarlogError]]:
    below = [found for child in kind.__subclasses__() for found in _tree(child)]
    return [kind, *below]


def test_the_table_has_every_error_of_the_tree() -> None:
    here = {kind for kind in _tree(VarlogError) if kind.__module__ == errors.__name__}
    assert here == set(ERROR_CODES.values())
    assert len(here) == len(ERROR_CODES)


@pytest.mark.parametrize("error", ERROR_SAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_arrives_as_the_same_class_with_the_same_facts(error: VarlogError) -> None:
    there = over_the_wire(error)
    assert type(there) is type(error)
    assert there.args == error.args
    assert vars(there) == vars(error)
    assert str(there) == str(error)


def test_an_error_that_is_not_known_here_is_unavailable() -> None:
    there = error_of(Failure(9999, ("orders", 5)))
    assert type(there) is Unavailable
    assert str(there) == "error 9999: orders, 5"


def test_an_error_with_facts_that_are_not_known_here_is_unavailable() -> None:
    assert type(error_of(Failure(code_of[EntryTooLarge], (1, 2, 3)))) is Unavailable


def test_a_connection_lost_elsewhere_is_not_reported_as_lost_here() -> None:
    """Law 10: `sent=False` of another process's call would make its caller believe that nothing was sent."""
    there = over_the_wire(ConnectionLost("the backup is gone", sent=False))
    assert type(there) is Unavailable
    assert str(there) == "the backup is gone"


def test_our_own_bug_is_unavailable_for_the_caller_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "varlog.rpc"):
        there = over_the_wire(KeyError("x"))
    assert type(there) is Unavailable
    assert "KeyError" in str(there)
    assert caplog.records[0].exc_info is not None


def test_a_fact_that_no_wire_carries_travels_as_text() -> None:
    there = over_the_wire(CorruptReplica(PurePosixPath("/data/x"), "torn"))  # type: ignore[arg-type]
    assert type(there) is CorruptReplica
    assert there.path == "/data/x"


def test_facts_are_the_fields_of_the_error() -> None:
    there = over_the_wire(EntryTooLarge(9, 8))
    assert isinstance(there, EntryTooLarge)
    assert (there.size, there.limit) == (9, 8)
