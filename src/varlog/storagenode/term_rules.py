"""PURE. Which repository a node talks with: newest term, first opening."""

from __future__ import annotations

from typing import Final

from varlog.model.errors import PreconditionFailed, StaleTerm
from varlog.model.ids import NodeID

# Terms of a repository on etcd are its revisions, which grow with every commit: at 30 000 a second for a year they stay below.
TERM_JUMP_MAX: Final = 1 << 40


def check_term(node: NodeID, seen: int, seen_nonce: int, term: int, nonce: int) -> None:
    """Refuse a term that is over, a twin (a restored copy of the store takes the same term once more), and a term that no
    repository can have reached: believed, it would lock every real one out for good (law 7)."""
    if term < seen or (term == seen and nonce != seen_nonce and seen_nonce and nonce):
        raise StaleTerm(term, seen, node)
    if term - seen > TERM_JUMP_MAX:
        raise PreconditionFailed(
            f"term {term} is too far above term {seen}, the newest that node {node} has seen: it is not believed"
        )
