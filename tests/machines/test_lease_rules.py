"""Leases: over at the repository only when they are over at their holder, whatever the clocks do within their bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.machines.sequenced import LS, ONE, OTHER, SEQUENCER, THREE, TOPIC, TWO, begun, reconfigured
from varlog.metarepo.membership import lease_rules as rules
from varlog.metarepo.membership.lease_rules import LEASE_US, Duty, LeaseBook
from varlog.metarepo.membership.projection_rules import Handover
from varlog.metarepo.membership.rules import trim_topic
from varlog.model.epoch import Epoch
from varlog.model.lease import HeldLease, Instant
from varlog.model.limits import CLOCK_DRIFT_MAX, LEASE_S
from varlog.model.lsn import GLSN, LLSN, LSN_MAX

_rates = st.floats(1 - CLOCK_DRIFT_MAX, 1 + CLOCK_DRIFT_MAX)
_moments = st.integers(0, 10**12)


def by_both(now_us: int) -> Instant:
    return Instant(now_us, now_us)


@given(_rates, _rates, _moments, _moments, st.integers(0, 10**7))
def test_a_lease_is_over_at_its_holder_first(
    node_rate: float, repository_rate: float, node_zero: int, repository_zero: int, way_us: int
) -> None:
    """R-SEQ-13: both clocks drift, begin anywhere, and the request may take any time: nobody's clock needs to
    be right."""
    asked, granted = 0, way_us  # in true time
    stamp = node_zero + int(asked * node_rate)
    book = LeaseBook(None)
    book.grant(ONE, by_both(repository_zero + int(granted * repository_rate)))
    node_ends = (stamp + LEASE_S * 1e6 * (1 - CLOCK_DRIFT_MAX) - node_zero) / node_rate
    just_before = repository_zero + int((node_ends - 1) * repository_rate)
    assert book.left_us(ONE, by_both(just_before)) > 0


@given(
    st.sampled_from([None, "steady", "monotonic"]),
    st.sampled_from([None, "steady", "monotonic"]),
    st.sampled_from(["stops", "jumps ahead"]),
    st.integers(0, int(6 * LEASE_S * 1e6)),
    st.lists(st.integers(0, int(3 * LEASE_S * 1e6)), min_size=1, max_size=6),
)
def test_one_clock_of_each_side_may_stop_or_jump_ahead(
    at_holder: str | None, at_granter: str | None, how: str, upset_us: int, gaps_us: list[int]
) -> None:
    """R-SEQ-13: as long as the other clock of the same machine counts, the lease is over at its holder first."""

    def shown(now_us: int, upset: str | None) -> Instant:
        wrong = now_us
        if now_us > upset_us:
            wrong = upset_us if how == "stops" else now_us + 10**9
        return Instant(wrong if upset == "steady" else now_us, wrong if upset == "monotonic" else now_us)

    held, book, now_us = HeldLease(), LeaseBook(None), 0
    for gap_us in gaps_us:
        now_us += gap_us
        stamp = held.ask(shown(now_us, at_holder))
        book.grant(ONE, shown(now_us, at_granter))
        assert held.granted(stamp, LEASE_S)
        assert not held.granted(stamp + 1, LEASE_S), "it was never asked"
        for later_us in (0, LEASE_US // 2, LEASE_US, 2 * LEASE_US):
            believed = held.holds(shown(now_us + later_us, at_holder))
            assert not believed or book.left_us(ONE, shown(now_us + later_us, at_granter)) > 0
    assert held.holds(shown(now_us, at_holder)), (
        "one wrong clock does not cost it a lease that was just given"
    )


def test_an_answer_that_comes_behind_a_later_one_counts_no_more() -> None:
    held = HeldLease()
    first, second = held.ask(Instant(100, 7)), held.ask(Instant(100, 8))
    assert first < second, "the steady clock stops, and the requests are still distinct"
    assert held.granted(second, LEASE_S)
    assert not held.granted(first, LEASE_S)
    held.end()
    assert not held.holds(Instant(100, 8))


def test_an_unknown_holder_may_have_a_lease_from_the_term_before() -> None:
    book = LeaseBook(by_both(1_000))
    assert book.left_us(ONE, by_both(1_000)) == book.left_us(SEQUENCER, by_both(1_000)) == LEASE_US
    book.grant(ONE, by_both(1_000))
    book.grant(TWO, by_both(2_000))
    assert (book.left_us(ONE, by_both(2_000)), book.left_us(TWO, by_both(2_000))) == (
        LEASE_US - 1_000,
        LEASE_US,
    )
    book.forget_ended(by_both(1_500 + LEASE_US))
    assert (book.left_us(ONE, by_both(1_500 + LEASE_US)), book.left_us(TWO, by_both(1_500 + LEASE_US))) == (
        0,
        500,
    )


def test_where_nobody_was_before_there_is_nobody_to_wait_for() -> None:
    assert LeaseBook(None).left_us(ONE, by_both(0)) == 0


def test_a_lease_never_becomes_shorter() -> None:
    """A clock that is read twice may say the same; a lease that was given stays given."""
    book = LeaseBook(by_both(5_000))
    book.grant(ONE, by_both(0))
    assert book.left_us(ONE, by_both(5_000)) == LEASE_US


def test_units_have_the_epoch_of_the_projection_and_nothing_that_was_trimmed() -> None:
    members = reconfigured(begun(), {LS: (TWO, THREE)})
    assert rules.duties(members.view) == {LS: Duty(Epoch(2), LLSN(1))}
    trimmed = trim_topic(members, TOPIC, GLSN(7), GLSN(LSN_MAX))
    assert rules.duties(trimmed.view) == {LS: Duty(Epoch(2), LLSN(8))}


def test_a_node_that_is_behind_gets_no_longer_lease() -> None:
    demanded = {LS: Duty(Epoch(3), LLSN(8))}
    assert not rules.lacks({LS: Duty(Epoch(4), LLSN(9))}, demanded)
    assert not rules.lacks({}, demanded), "a unit that does not exist serves no request"
    assert rules.lacks({LS: Duty(Epoch(2), LLSN(9))}, demanded)
    assert rules.lacks({LS: Duty(Epoch(3), LLSN(7))}, demanded)


def test_a_unit_that_could_not_be_sealed_is_sealed_on_the_way() -> None:
    """One client does not reach it, the repository does: nobody has to wait for a lease."""
    handover = Handover(Epoch(3), ((LS, ONE),), OTHER)
    before = Duty(Epoch(2), LLSN(4))
    assert rules.with_handovers(ONE, LS, before, [handover]) == Duty(Epoch(3), LLSN(4))
    assert rules.with_handovers(TWO, LS, before, [handover]) == before
    assert rules.waited_for(handover, {}) == (ONE, OTHER)
    assert rules.waited_for(handover, {ONE: {LS: before}}) == (ONE, OTHER)
    assert rules.waited_for(handover, {ONE: {LS: Duty(Epoch(3), LLSN(4))}}) == (OTHER,)


def test_a_trim_waits_for_every_member_that_may_still_serve_it() -> None:
    """R-TRIM-1: also for those that are away, and for those that have not reported in this term."""
    view = trim_topic(reconfigured(begun(), {LS: (TWO, THREE)}), TOPIC, GLSN(7), GLSN(LSN_MAX)).view
    done, late = Duty(Epoch(2), LLSN(8)), Duty(Epoch(2), LLSN(7))
    assert rules.trim_waits_for(view, TOPIC, GLSN(7), {}) == (TWO, THREE, ONE)
    reported = {ONE: {LS: done}, TWO: {LS: late}, THREE: {LS: done}}
    assert rules.trim_waits_for(view, TOPIC, GLSN(7), reported) == (TWO,)
    # A unit of the chain that was not reported yet may serve; one that is away and was not reported does not exist.
    assert rules.trim_waits_for(view, TOPIC, GLSN(7), reported | {THREE: {}}) == (TWO, THREE)
    assert rules.trim_waits_for(view, TOPIC, GLSN(7), reported | {ONE: {}}) == (TWO,)


def test_a_sequencer_gets_every_epoch() -> None:
    assert rules.epochs(begun().view) == ((TOPIC, Epoch(1)),)
    assert rules.epochs(reconfigured(begun(), {LS: (ONE,)}).view) == ((TOPIC, Epoch(2)),)
