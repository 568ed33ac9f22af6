"""PURE. Which repository a node accepts: the newest term, its first opening."""

from __future__ import annotations

from varlog.model.errors import PreconditionFailed, StaleTerm
from varlog.model.ids import NodeID
from varlog.model.limits import TERM_JUMP_MAX


def check_term(node: NodeID, seen: int, seen_nonce: int, term: int, nonce: int) -> None:
    """Refuse a term that is over, a twin (a restored copy of the store uses the same term again), and a term that no repository
    can have reached: if it were accepted, it would lock out every real one forever (law 7)."""
    if term < seen or (term == seen and nonce != seen_nonce and seen_nonce and nonce):
        raise StaleTerm(term, seen, node)
    if term - seen > TERM_JUMP_MAX:
        raise PreconditionFailed(
            f"term {term} is too far above term {seen}, the newest that node {node} has seen: it is refused"
        )
