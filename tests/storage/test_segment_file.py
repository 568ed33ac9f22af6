"""SegmentFile: how far a segment is reserved ahead: little for one that holds little, whole steps for a large one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.helpers import fill, new_store
from varlog.model.limits import KIB, MIB, SEGMENT_BYTES
from varlog.storage.segment_file import RESERVE_FIRST_BYTES, RESERVE_STEP_BYTES, reserved_for


@pytest.mark.parametrize(
    ("end", "reserved"),
    [
        (1, RESERVE_FIRST_BYTES),
        (256 * KIB, 256 * KIB),
        (256 * KIB + 1, 512 * KIB),
        (3 * MIB, 4 * MIB),
        (RESERVE_STEP_BYTES, RESERVE_STEP_BYTES),
        (RESERVE_STEP_BYTES + 1, 2 * RESERVE_STEP_BYTES),
        (SEGMENT_BYTES, SEGMENT_BYTES),
    ],
)
def test_the_reserve_doubles_up_to_a_step_and_then_grows_in_steps(end: int, reserved: int) -> None:
    assert reserved_for(end) == reserved


def test_a_log_is_reserved_seldom_however_long_it_grows() -> None:
    """Each time costs a change of metadata: a segment of 64 MiB may have some dozen of them, not one a write."""
    reserves, reserved = 0, 0
    for end in range(KIB, SEGMENT_BYTES + 1, KIB):
        if end > reserved:
            reserves, reserved = reserves + 1, reserved_for(end)
    assert (reserves, reserved) == (13, SEGMENT_BYTES)


def test_a_log_that_holds_little_takes_little_of_the_disk(tmp_path: Path) -> None:
    """A thousand topics of three copies, reserved by the step, would take 24 GiB."""
    store = new_store(tmp_path, segment_bytes=SEGMENT_BYTES)
    fill(store, [[b"entry"]])
    (segment,) = store.path.glob("*.seg")
    assert segment.stat().st_blocks * 512 <= 2 * RESERVE_FIRST_BYTES
