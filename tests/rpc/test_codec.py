"""Messages on the wire: every one comes back as it was, and versions understand each other."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rpc.samples import MESSAGES
from varlog.model.errors import InvalidRequest, Unavailable
from varlog.model.ids import TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.codec import decode, encode, number_of
from varlog.rpc.messages import NUMBERS, AppendReply, Commits, Message, ReadAt


def test_there_is_a_sample_of_every_message() -> None:
    assert [type(message) for message in MESSAGES] == list(NUMBERS.values())


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    assert decode(number_of[type(message)], encode(message)) == message
    assert decode(number_of[type(message)], memoryview(bytearray(encode(message)))) == message


def test_what_an_older_peer_leaves_out_has_its_default() -> None:
    assert decode(number_of[ReadAt], msgspec.msgpack.encode([3, 131])) == ReadAt(TopicID(3), GLSN(131))


def test_what_a_newer_peer_adds_is_ignored() -> None:
    newer = msgspec.msgpack.encode([131, 61, "new", {"x": 1}])
    assert decode(number_of[AppendReply], newer) == AppendReply(GLSN(131), LLSN(61))


def test_a_message_that_is_not_known_is_unavailable_here() -> None:
    with pytest.raises(Unavailable, match="65000"):
        decode(65000, b"\x90")


@pytest.mark.parametrize("meta", [b"", b"\xc1", b"\x90", b"\x92\x01\xa1x", b"\x92\x01", b"\x91" * 100_000])
def test_bytes_that_are_no_such_message_are_refused_by_its_name(meta: bytes) -> None:
    with pytest.raises(InvalidRequest, match="AppendReply"):
        decode(number_of[AppendReply], meta)


def test_an_impossible_value_is_refused_by_the_type_itself() -> None:
    """A commit row is never empty."""
    empty = [8, 12, [], [[5, [[12, 140, 130, 131, 61, 0, 4]]]]]
    with pytest.raises(InvalidRequest, match="never empty"):
        decode(number_of[Commits], msgspec.msgpack.encode(empty))


def check_decoded(number: int, meta: bytes | bytearray) -> None:
    """A message of that number, or one error; any other exception fails the test."""
    try:
        message = decode(number, meta)
    except InvalidRequest:
        return
    assert type(message) is NUMBERS[number]


@given(st.sampled_from(sorted(NUMBERS)), st.binary(max_size=60))
def test_any_bytes_are_a_message_or_an_error_of_the_tree(number: int, meta: bytes) -> None:
    check_decoded(number, meta)


@given(st.sampled_from(MESSAGES), st.data())
def test_a_flipped_bit_gives_a_message_or_an_error_of_the_tree(message: Message, data: st.DataObject) -> None:
    meta = bytearray(encode(message))
    bit = data.draw(st.integers(0, len(meta) * 8 - 1))
    meta[bit // 8] ^= 1 << bit % 8
    check_decoded(number_of[type(message)], meta)
