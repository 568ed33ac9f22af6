"""Keys in order, in blocks: the same as a sorted list, whatever is added and removed; and prefixes as ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varlog.recipes.kv import key_order
from varlog.recipes.kv.key_order import KeyOrder, KeyRange, prefix_range, up_to

KEYS = st.text(
    st.sampled_from(["\0", "a", "b", "\ud7ff", "\ue000", "\U0010ffff"]), max_size=3
)  # the edges of what a key can be


@given(st.sets(KEYS), st.lists(KEYS), KEYS, st.none() | KEYS)
def test_ranges_are_those_of_a_sorted_list(
    first: set[str], toggled: list[str], begin: str, end: str | None
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_order, "BLOCK_KEYS", 2)
        made, held = KeyOrder(first), set(first)
        for key in toggled:
            if key in held:
                held.remove(key)
                made.remove(key)
            else:
                held.add(key)
                made.add(key)
            keys = KeyRange(begin, end)
            assert list(made.within(keys)) == sorted(key for key in held if key in keys)
        assert list(made.within(KeyRange())) == sorted(held)


def test_many_keys_in_any_order_stay_in_order() -> None:
    made = KeyOrder()
    keys = [f"{number * 7919 % 20_000:05}" for number in range(20_000)]
    for key in keys:
        made.add(key)
    assert list(made.within(KeyRange("00990", "01010"))) == [f"{number:05}" for number in range(990, 1010)]
    for key in keys[:15_000]:
        made.remove(key)
    assert list(made.within(KeyRange())) == sorted(keys[15_000:])


@given(KEYS, KEYS)
def test_a_prefix_is_a_range(prefix: str, key: str) -> None:
    keys = prefix_range(prefix)
    assert (key in keys) == key.startswith(prefix)
    assert prefix + key in keys
    (keys.end or "").encode()  # can be written down


@given(KEYS, KEYS, KEYS)
def test_up_to_a_key_has_that_key_and_none_after_it(begin: str, last: str, key: str) -> None:
    assert (key in up_to(begin, last)) == (begin <= key <= last)


def test_a_range_renders_its_bounds() -> None:
    assert str(KeyRange("a", "b")) == "['a', 'b')"
    assert str(prefix_range("")) == "['', the end)"
