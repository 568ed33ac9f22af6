"""Epoch: a version that fences: what has seen epoch e refuses all older (law 7)."""

from __future__ import annotations

from typing import NewType

Epoch = NewType("Epoch", int)

# A replica that was just made has seen no epoch: the first seal brings it epoch 1.
NO_EPOCH = Epoch(0)
FIRST_EPOCH = Epoch(1)
