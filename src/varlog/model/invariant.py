"""invariant(): a bug of ours is found where it happens and freezes its owner."""

from __future__ import annotations


class InvariantBroken(Exception):
    """A law of ours does not hold: a bug of varlog, never of its user. The owner of the state freezes."""

    def __init__(self, law: str, facts: dict[str, object]) -> None:
        self.law = law
        self.facts = facts
        shown = ", ".join(f"{name}={value!r}" for name, value in facts.items())
        super().__init__(f"broken invariant: {law} ({shown})")


def invariant(holds: bool, law: str, **facts: object) -> None:
    """Raise InvariantBroken unless `holds`. A function, not `assert`: it must survive `python -O`."""
    if not holds:
        raise InvariantBroken(law, facts)
