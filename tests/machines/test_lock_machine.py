"""The line of a lock, whatever is sent in whatever order: one holder, first come first served, tokens that grow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varlog.model.errors import InvalidRequest
from varlog.model.lsn import GLSN, NO_GLSN
from varlog.recipes.lock.lock_machine import (
    WHO_CHARS_MAX,
    Enter,
    Expire,
    Leave,
    LockCommand,
    LockMachine,
    Renew,
    decode_lock_command,
    encode_lock_command,
)

TTL_US = 10_000_000

_claims = st.sampled_from("abcd")
_commands = st.one_of(
    st.builds(Enter, _claims, st.integers(1, TTL_US), st.text(max_size=3)),
    st.builds(Renew, _claims, st.integers(0, 5)),
    st.builds(Leave, _claims),
    st.builds(Expire, _claims, st.integers(1, 30).map(GLSN)),
)


def machine(*commands: LockCommand) -> LockMachine:
    """After these commands, at positions 1, 2, 3 …"""
    made = LockMachine()
    for at, command in enumerate(commands, 1):
        made.execute(GLSN(at), command)
    return made


def enter(claim: str) -> Enter:
    return Enter(claim, TTL_US, claim.upper())


def line(made: LockMachine) -> str:
    return "".join(claim.claim for claim in made)


@given(st.lists(_commands, max_size=40))
def test_every_change_of_hands_has_a_larger_token_and_nobody_overtakes(commands: list[LockCommand]) -> None:
    """R-USE-2: fencing tokens strictly grow; the lock goes to who has waited longest."""
    made = LockMachine()
    for at, command in enumerate(commands, 1):
        before, token, holder = line(made), made.token, made.holder
        made.execute(GLSN(at), command)
        after = line(made)
        if made.holder is not None and (holder is None or made.holder.claim != holder.claim):
            assert made.token == at > token
        else:
            assert made.token == token
        left = [claim for claim in before if claim not in after]
        came = after[len(before) - len(left) :]
        assert len(left) <= 1
        assert len(came) <= 1
        assert after == "".join(claim for claim in before if claim in after) + came


@given(st.lists(_commands, max_size=40))
def test_only_its_owner_or_an_observer_of_its_last_heartbeat_removes_a_claim(
    commands: list[LockCommand],
) -> None:
    made = LockMachine()
    signs: dict[str, int] = {}
    for at, command in enumerate(commands, 1):
        before = set(line(made))
        done = made.execute(GLSN(at), command)
        gone = before - set(line(made))
        match command:
            case Leave(claim):
                assert gone == ({claim} if done else set())
            case Expire(claim, sign):
                assert done == (claim in before and signs[claim] == sign)
                assert gone == ({claim} if done else set())
            case Enter(claim) | Renew(claim):
                assert not gone
                if done:
                    signs[claim] = at
                    found = made.find(claim)
                    assert found is not None
                    assert found.heartbeat == at


@given(st.lists(_commands, max_size=30), st.lists(_commands, max_size=10))
def test_a_restored_machine_behaves_as_the_one_that_was_saved(
    before: list[LockCommand], after: list[LockCommand]
) -> None:
    made, again = machine(*before), LockMachine()
    again.restore(made.snapshot())
    for at, command in enumerate(after, len(before) + 1):
        assert made.apply(GLSN(at), encode_lock_command(command)) == again.apply(
            GLSN(at), encode_lock_command(command)
        )
    assert (list(again), again.token) == (list(made), made.token)
    assert again.snapshot() == made.snapshot()


def test_the_first_holds_and_the_others_wait_in_turn() -> None:
    made = LockMachine()
    assert (made.holder, made.token, len(made)) == (None, NO_GLSN, 0)
    assert made.execute(GLSN(3), enter("a"))
    assert made.execute(GLSN(4), enter("b"))
    assert made.execute(GLSN(5), enter("c"))
    assert (line(made), made.token, len(made)) == ("abc", 3, 3)
    assert made.execute(GLSN(9), Leave("b")), "a waiter may leave"
    assert (line(made), made.token) == ("ac", 3)
    assert made.execute(GLSN(10), Leave("a"))
    assert (line(made), made.token) == ("c", 10)
    assert not made.execute(GLSN(11), Leave("a")), "it is gone already"


def test_an_entry_that_is_applied_twice_changes_nothing() -> None:
    made = machine(enter("a"), enter("b"), enter("a"))
    assert line(made) == "ab"
    found = made.find("a")
    assert found is not None
    assert found.heartbeat == 1, "it is no sign of life: it may be as old as the first one"


def test_one_renewal_saves_a_claim_from_being_expired() -> None:
    made = machine(enter("a"), enter("b"), Renew("a", 1))
    assert not made.execute(GLSN(4), Expire("a", GLSN(1)))
    assert made.execute(GLSN(5), Expire("a", GLSN(3)))
    assert (line(made), made.token) == ("b", 5)
    assert not made.execute(GLSN(6), Renew("a", 2)), "who was expired stays away"


def test_a_late_renewal_is_a_sign_but_not_a_newer_one() -> None:
    """Others count from where they saw it; its owner from when the newest one was sent."""
    found = machine(enter("a"), Renew("a", 2), Renew("a", 1)).find("a")
    assert found is not None
    assert (found.heartbeat, found.beat) == (3, 2)


@given(_commands)
def test_a_command_is_read_as_it_was_written(command: LockCommand) -> None:
    assert decode_lock_command(encode_lock_command(command)) == command


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"7",
        b"[]",
        b"{}",
        b'[2,"enter","a",1,""]',
        b'[1,"steal","a"]',
        b'[1,"leave"]',
        b'[1,"leave","a","b"]',
    ],
)
def test_what_is_no_command_of_this_version_is_never_skipped(data: bytes) -> None:
    """A replica that skipped it would disagree with those that can read it."""
    with pytest.raises(ValueError, match=r".+"):
        LockMachine().apply(GLSN(1), data)


def test_a_snapshot_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="use a newer one"):
        LockMachine().restore(b"[2,0,[]]")


@pytest.mark.parametrize("wrong", [("", 1, ""), ("a", 0, ""), ("a", 1, "x" * (WHO_CHARS_MAX + 1))])
def test_a_claim_without_id_or_time_cannot_be_made(wrong: tuple[str, int, str]) -> None:
    with pytest.raises(InvalidRequest, match="a claim needs"):
        Enter(*wrong)
