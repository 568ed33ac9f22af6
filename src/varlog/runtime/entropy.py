"""Entropy: the type of chance, for those who are handed it and may not reach for any of their own."""

from __future__ import annotations

import random

Entropy = random.Random
