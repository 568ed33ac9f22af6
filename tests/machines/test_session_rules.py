"""Sessions against their promise: what is appended twice, late or in another order is applied once, the same on every replica."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from varlog.model.invariant import InvariantBroken
from varlog.model.lsn import GLSN
from varlog.recipes.core.command_rules import WINDOW_COMMANDS_MAX, ApplyDecision, Issuer, Sessions

CLIENTS_MAX = 3


class Copy(NamedTuple):
    """A command on its way into the log, as often as its client sent it."""

    client: bytes
    born: GLSN
    sequence: int
    floor: int
    command: int


class ExactlyOnce(RuleBasedStateMachine):
    """Clients that number commands and settle them by what the log shows, copies that arrive in any order, and two replicas: one
    that applied everything, and one that began from a snapshot."""

    def __init__(self) -> None:
        super().__init__()
        self.tail = GLSN(0)
        self.sessions = Sessions(CLIENTS_MAX)
        self.other = Sessions(CLIENTS_MAX)
        self.issuers: dict[bytes, Issuer[int]] = {}
        self.in_flight: list[Copy] = []
        self.applied: dict[int, int] = {}
        self.given_up: set[int] = set()
        self.commands = 0

    @rule()
    def open_a_client(self) -> None:
        client = b"%d" % len(self.issuers)
        self.issuers[client] = Issuer(client, self.tail)

    @rule(data=st.data(), copies=st.integers(1, 3))
    def issue(self, data: st.DataObject, copies: int) -> None:
        if not self.issuers:
            return
        issuer = data.draw(st.sampled_from(sorted(self.issuers.values(), key=lambda issuer: issuer.client)))
        self.commands += 1
        sequence = issuer.issue(self.commands)
        copy = Copy(issuer.client, issuer.born, sequence, issuer.floor, self.commands)
        self.in_flight += [copy] * copies

    @rule(data=st.data(), again=st.booleans())
    def arrive(self, data: st.DataObject, again: bool) -> None:
        """A copy gets its place in the log; with `again` another one of it is still on its way."""
        if not self.in_flight:
            return
        copy = data.draw(st.sampled_from(self.in_flight))
        if not again:
            self.in_flight.remove(copy)
        self.tail = GLSN(self.tail + 1)
        fields = (copy.client, copy.born, copy.sequence, copy.floor)
        foreseen = self.sessions.decide(copy.client, copy.born, copy.sequence)
        decision = self.sessions.admit(self.tail, *fields)
        assert decision is foreseen
        assert self.other.admit(self.tail, *fields) is decision
        if decision is ApplyDecision.APPLY:
            self.applied[copy.command] = self.applied.get(copy.command, 0) + 1
            assert copy.command not in self.given_up, "what was refused once is never applied"
        if decision is ApplyDecision.FORGOTTEN and copy.command not in self.applied:
            self.given_up.add(copy.command)
        if decision is not ApplyDecision.REPEATED:
            self.issuers[copy.client].settle(copy.sequence)

    @rule(data=st.data())
    def never_send(self, data: st.DataObject) -> None:
        """A command whose copies are certainly not in the log, and never will be, is settled as well."""
        if not self.in_flight:
            return
        copy = data.draw(st.sampled_from(self.in_flight))
        if copy.command in self.applied or copy.command in self.given_up:
            return
        self.in_flight = [other for other in self.in_flight if other.command != copy.command]
        self.issuers[copy.client].settle(copy.sequence)

    @rule()
    def begin_from_a_snapshot(self) -> None:
        self.other = Sessions(CLIENTS_MAX)
        self.other.restore(self.sessions.horizon, list(self.sessions))

    @invariant()
    def nothing_is_applied_twice(self) -> None:
        assert all(times == 1 for times in self.applied.values())

    @invariant()
    def replicas_are_the_same(self) -> None:
        assert list(self.sessions) == list(self.other)
        assert self.sessions.horizon == self.other.horizon
        assert len(self.sessions) <= CLIENTS_MAX

    @invariant()
    def what_is_open_is_at_or_above_the_floor(self) -> None:
        for issuer in self.issuers.values():
            assert all(sequence >= issuer.floor for sequence, _ in issuer.open())


def test_whatever_is_sent_twice_or_late_is_applied_once() -> None:
    run_state_machine_as_test(ExactlyOnce, settings=settings(max_examples=300, stateful_step_count=60))


def test_a_command_of_a_client_that_may_be_a_forgotten_one_is_refused() -> None:
    sessions = Sessions(1)
    assert sessions.admit(GLSN(5), b"a", 0, 1, 1) is ApplyDecision.APPLY
    assert sessions.admit(GLSN(6), b"b", 4, 1, 1) is ApplyDecision.APPLY  # a is forgotten
    assert sessions.horizon == 5
    assert sessions.admit(GLSN(7), b"a", 0, 1, 1) is ApplyDecision.FORGOTTEN
    assert sessions.admit(GLSN(8), b"c", 4, 1, 1) is ApplyDecision.FORGOTTEN, (
        "it is new, but that is no longer known"
    )
    assert sessions.admit(GLSN(9), b"d", 5, 1, 1) is ApplyDecision.APPLY


def test_a_session_keeps_only_what_is_above_its_floor() -> None:
    sessions = Sessions()
    for sequence in range(1, 101):
        sessions.admit(GLSN(sequence), b"a", 0, sequence, max(1, sequence - 2))
    assert list(sessions) == [(b"a", 98, [98, 99, 100], 100)]


def test_a_client_with_an_old_open_command_is_full_and_issues_no_more() -> None:
    """Replicas remember what is above the floor: it must have an end."""
    issuer: Issuer[None] = Issuer(b"a", GLSN(0))
    issuer.issue(None)
    for _ in range(WINDOW_COMMANDS_MAX - 1):
        issuer.settle(issuer.issue(None))
    assert issuer.full
    with pytest.raises(InvariantBroken, match="within a window"):
        issuer.issue(None)
    issuer.settle(1)
    assert not issuer.full
