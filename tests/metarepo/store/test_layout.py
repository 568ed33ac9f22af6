"""Layout: whatever changes come, the operations on keys come to the same map, in any order, within what a transaction may hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varlog.metarepo.store import layout as layouts
from varlog.metarepo.store.base import DeleteItem, DeleteItems, PutItem, StoreChange
from varlog.metarepo.store.keyspace import (
    BYTES_MAX,
    OPERATIONS_MAX,
    DeleteKeys,
    KeyOperation,
    PutKey,
    StoredKey,
)
from varlog.metarepo.store.layout import Layout, batches, decode_redo, encode_redo

PREFIX = "p/item/"
KEYS = st.sampled_from(["a", "a/b", "b", "cut/1", "cut/10", "cut/2", "d"])
CHANGES: st.SearchStrategy[StoreChange] = st.one_of(
    st.builds(PutItem, KEYS, st.binary(max_size=9)),
    st.builds(DeleteItem, KEYS),
    st.builds(DeleteItems, KEYS, KEYS),
)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "PART_BYTES_MAX", 3)


def done(keys: dict[str, bytes], operations: list[KeyOperation]) -> dict[str, bytes]:
    """The keys after `operations`, which must not touch one of them twice."""
    keys = dict(keys)
    put = [operation.key for operation in operations if isinstance(operation, PutKey)]
    assert len(put) == len(set(put))
    for operation in operations:
        if isinstance(operation, DeleteKeys):
            assert operation.begin < operation.end
            assert not [key for key in put if operation.begin <= key < operation.end]
            for key in [key for key in keys if operation.begin <= key < operation.end]:
                del keys[key]
    return keys | {one.key: one.value for one in operations if isinstance(one, PutKey)}


def changed(items: dict[str, bytes], changes: list[StoreChange]) -> dict[str, bytes]:
    items = dict(items)
    for change in changes:
        if isinstance(change, PutItem):
            items[change.key] = change.value
        elif isinstance(change, DeleteItem):
            items.pop(change.key, None)
        else:
            items = {key: value for key, value in items.items() if not change.begin <= key < change.end}
    return items


def loaded(keys: dict[str, bytes]) -> tuple[Layout, dict[str, bytes]]:
    layout = Layout(PREFIX)
    return layout, layout.load(StoredKey(key, keys[key], 1, 1) for key in sorted(keys))


@given(commits=st.lists(st.lists(CHANGES, max_size=6), max_size=5), reload=st.booleans())
def test_keys_hold_what_the_changes_state(commits: list[list[StoreChange]], reload: bool) -> None:
    keys: dict[str, bytes] = {}
    items: dict[str, bytes] = {}
    layout = Layout(PREFIX)
    for changes in commits:
        operations = layout.operations(changes)
        keys, items = done(keys, operations), changed(items, changes)
        assert decode_redo(encode_redo(operations)) == operations
        fresh, found = loaded(keys)
        assert found == items
        layout = fresh if reload else layout


def test_a_large_value_that_becomes_small_leaves_nothing_behind() -> None:
    layout = Layout(PREFIX)
    keys = done({}, layout.operations([PutItem("a", b"123456789"), PutItem("b", b"x")]))
    assert len(keys) == 4
    assert done(keys, layout.operations([PutItem("a", b"1")])) == {PREFIX + "a": b"1", PREFIX + "b": b"x"}


def test_batches_keep_the_order_and_the_bounds() -> None:
    many: list[KeyOperation] = [PutKey(f"k{n}", bytes(20_000)) for n in range(200)]
    many += [PutKey(f"s{n}", b"") for n in range(300)]
    found = list(batches(many))
    assert [operation for batch in found for operation in batch] == many
    assert all(len(batch) <= OPERATIONS_MAX for batch in found)
    assert all(
        sum(len(one.value) for one in batch if isinstance(one, PutKey)) <= BYTES_MAX for batch in found
    )
    assert list(batches([])) == []
