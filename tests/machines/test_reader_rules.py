"""Named readers: a position never falls by accident, and a trim that respects them takes nothing away that is not read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varlog.metarepo.membership import named_rules, rules
from varlog.metarepo.membership.named import BUCKETS, Named
from varlog.metarepo.membership.rules import Members
from varlog.model.cluster import ClusterView, NamedReader, Ordering
from varlog.model.errors import InvalidRequest, PreconditionFailed, ReaderBehind, UnknownTopic, VarlogError
from varlog.model.ids import ClusterID, TopicID
from varlog.model.lsn import GLSN

ORDERS, BILLS = TopicID(1), TopicID(2)
NEWEST = GLSN(100)


def topics() -> Members:
    members = Members(ClusterView(ClusterID(1), revision=1))
    for name in ("orders", "bills"):
        members, _ = rules.register_topic(members, name, Ordering.COMMITTED)
    return members


def at(members: Members, position: int, name: str = "nightly", **more: Any) -> Members:
    return named_rules.set_reader(members, ORDERS, name, GLSN(position), NEWEST, **more)[0]


def position(members: Members, name: str = "nightly") -> int:
    found = members.readers.get(ORDERS, name)
    assert found is not None
    return found.position


def test_a_word_that_comes_late_moves_no_reader_back() -> None:
    members = at(topics(), 40, time_us=7)
    late = at(members, 30, time_us=5)
    assert late is members
    assert position(at(members, 30, time_us=9)) == 40


def test_a_reader_goes_back_where_that_is_wanted() -> None:
    assert position(at(at(topics(), 40), 30, back=True)) == 30


def test_saying_the_same_position_later_shows_that_the_reader_lives() -> None:
    found = at(at(topics(), 40, time_us=5), 40, time_us=8).readers.get(ORDERS, "nightly")
    assert found == NamedReader(ORDERS, "nightly", GLSN(40), 8)


def test_a_cursor_is_never_beyond_what_exists() -> None:
    with pytest.raises(PreconditionFailed, match="cannot be at 101: the newest position is 100"):
        at(topics(), 101)
    assert position(at(topics(), 100)) == 100


@pytest.mark.parametrize("wrong", [-1, -(2**40)])
def test_a_position_before_all_is_refused(wrong: int) -> None:
    with pytest.raises(InvalidRequest, match="positions start at 1"):
        at(topics(), wrong)


@pytest.mark.parametrize("name", ["", "a/b", "x" * 201, "two\nlines", "nul\0", "\x7f"])
def test_a_name_that_fits_in_no_key_or_line_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="a reader's name has 1 to 200 printable characters"):
        at(topics(), 1, name)


def test_a_reader_of_an_unknown_topic_is_refused() -> None:
    with pytest.raises(UnknownTopic):
        named_rules.set_reader(topics(), TopicID(9), "nightly", GLSN(1), NEWEST)


def test_readers_make_no_new_view() -> None:
    before = topics()
    assert at(before, 40).view is before.view


def test_there_is_a_bound_and_it_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_rules, "READERS_MAX", 2)
    members = at(at(topics(), 1, "a"), 1, "b")
    with pytest.raises(PreconditionFailed, match=r"2 named readers already.*varlog reader forget"):
        at(members, 1, "c")
    assert position(at(members, 2, "b"), "b") == 2
    assert position(at(named_rules.forget_reader(members, ORDERS, "a"), 1, "c"), "c") == 1


def test_forgetting_an_unknown_reader_changes_nothing() -> None:
    members = at(topics(), 1)
    assert named_rules.forget_reader(members, BILLS, "nightly") is members
    assert len(named_rules.forget_reader(members, ORDERS, "nightly").readers) == 0


def test_a_topic_takes_its_readers_with_it() -> None:
    members, _ = named_rules.set_reader(at(topics(), 1), BILLS, "nightly", GLSN(1), NEWEST)
    left = rules.unregister_topic(members, ORDERS)
    assert [reader.topic for reader in left.readers] == [BILLS]


def test_a_trim_names_the_reader_that_is_furthest_behind() -> None:
    members = at(at(at(topics(), 60, "a"), 40, "b"), 50, "c")
    with pytest.raises(ReaderBehind) as behind:
        named_rules.check_trim(members, ORDERS, GLSN(55))
    assert (behind.value.reader, behind.value.position, behind.value.asked) == ("b", 40, 55)
    named_rules.check_trim(members, ORDERS, GLSN(40))
    named_rules.check_trim(members, BILLS, GLSN(99))


def test_what_is_trimmed_already_is_nobodys_loss() -> None:
    members = rules.trim_topic(at(topics(), 10), ORDERS, GLSN(30), NEWEST)
    named_rules.check_trim(members, ORDERS, GLSN(30))
    with pytest.raises(ReaderBehind):
        named_rules.check_trim(members, ORDERS, GLSN(31))


STEPS = st.one_of(
    st.tuples(st.just("set"), st.sampled_from("abc"), st.integers(-2, 110), st.booleans()),
    st.tuples(st.just("forget"), st.sampled_from("abc")),
    st.tuples(st.just("trim"), st.integers(0, 110)),
)


@given(st.lists(STEPS, max_size=40))
def test_no_respectful_trim_ever_passes_a_reader(steps: list[tuple[Any, ...]]) -> None:
    members = topics()
    for kind, *facts in steps:
        before = members
        try:
            if kind == "set":
                name, where, back = facts
                members = at(members, where, name, back=back)
                known = before.readers.get(ORDERS, name)
                assert position(members, name) == (
                    where if back or known is None else max(where, known.position)
                )
            elif kind == "forget":
                members = named_rules.forget_reader(members, ORDERS, facts[0])
            else:
                named_rules.check_trim(members, ORDERS, GLSN(facts[0]))
                members = rules.trim_topic(members, ORDERS, GLSN(facts[0]), NEWEST)
                moved = members is not before
                assert not moved or all(reader.position >= facts[0] for reader in members.readers)
        except VarlogError:
            assert members is before


# --- The map they are kept in -------------------------------------------------------------------------------------------

CHANGES = st.lists(
    st.tuples(st.sampled_from([ORDERS, BILLS]), st.text("abcdef", min_size=1), st.integers(0, 3)), max_size=60
)


@given(CHANGES, CHANGES)
def test_what_differs_between_two_maps_makes_one_out_of_the_other(
    first: list[tuple[TopicID, str, int]], second: list[tuple[TopicID, str, int]]
) -> None:
    def changed(named: Named[NamedReader], changes: list[tuple[TopicID, str, int]]) -> Named[NamedReader]:
        for topic, name, at in changes:
            named = named.having(NamedReader(topic, name, GLSN(at))) if at else named.without(topic, name)
        return named

    before = changed(Named(), first)
    after = changed(before, second)
    plain = {(one.topic, one.name): one for one in before}
    for key, value in after.differing(before):
        if value is None:
            del plain[key]
        else:
            plain[key] = value
    assert Named(plain.values()) == after
    assert (len(after), after.of(TopicID(0))) == (len(plain), [plain[key] for key in sorted(plain)])
    assert list(after.differing(Named(after))) == []


def test_a_change_touches_one_of_many_buckets() -> None:
    many: Named[NamedReader] = Named(NamedReader(ORDERS, f"r{number}", GLSN(1)) for number in range(1000))
    changed = many.having(NamedReader(ORDERS, "r7", GLSN(2)))
    same = [old is new for old, new in zip(many._buckets, changed._buckets, strict=True)]
    assert same.count(False) == 1 and len(same) == BUCKETS
