"""What a client knows of the queues of its chains: what would be late asks for no token, and that ends by itself."""

from __future__ import annotations

import pytest

from varlog.client.sequenced.sender import HEAD_SHARE_MIN, ChainLoad
from varlog.model.admission import SHARE
from varlog.model.errors import Overloaded
from varlog.model.ids import LogStreamID

LS = LogStreamID(1)


def test_after_a_refusal_those_with_no_more_time_are_refused_until_the_named_moment() -> None:
    load = ChainLoad()
    load.check(0.001, 10.0)
    load.refused(Overloaded(40, 50.0, 0.3), 1.0, 10.0)
    with pytest.raises(Overloaded) as refused:
        load.check(1.0, 10.2)
    assert refused.value.waiting == 40
    assert refused.value.retry_after_s == pytest.approx(0.1)
    load.check(1.0, 10.31)
    # One that has more time may come earlier, one that has less may not.
    load.check(2.0, 10.0)
    with pytest.raises(Overloaded):
        load.check(0.1, 10.31)
    load.check(0.001, 10.3 + SHARE)


def test_the_head_gets_the_time_that_the_rest_of_the_chain_does_not_need() -> None:
    load = ChainLoad()
    assert load.head_s(LS, 1.0, 0.0) == 1.0
    for _ in range(50):
        load.written(LS, 0.4, 5.0)
    assert load.head_s(LS, 1.0, 5.0) == pytest.approx(0.6, abs=0.01)
    assert load.head_s(LS, 0.1, 5.0) == pytest.approx(HEAD_SHARE_MIN * 0.1)
    assert load.head_s(LogStreamID(2), 1.0, 5.0) == 1.0
    # What was measured long ago says little.
    assert load.head_s(LS, 1.0, 6.0) == pytest.approx(0.8, abs=0.01)
