"""Seams of storage and storage nodes: machines alone move their fields, and the two orderings do not import each other."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "varlog"
MACHINES = {"machine", "_machine"}


def assigned_attributes(tree: ast.AST) -> list[ast.Attribute]:
    """Every `x.y` that is assigned to, also within a tuple."""
    return [
        node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    ]


def is_machine(owner: ast.expr) -> bool:
    name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
    return name in MACHINES


def test_no_module_moves_the_fields_of_a_machine() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{target.lineno}: {ast.unparse(target)}"
        for package in ("storagenode", "sequencer", "metarepo")
        for path in sorted((SOURCE / package).rglob("*.py"))
        for target in assigned_attributes(ast.parse(path.read_text()))
        if is_machine(target.value)
    ]
    assert not found, f"a machine moves its fields itself, by an event: {found}"


def test_the_two_orderings_of_storage_do_not_import_each_other() -> None:
    """They share leaves beside them, never each other's modules."""
    found = [
        f"{path.relative_to(SOURCE)}: {node.module}"
        for package in ("storage", "storagenode")
        for own, other in (("committed", "sequenced"), ("sequenced", "committed"))
        for path in sorted((SOURCE / package / own).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and f".{other}" in (node.module or "")
    ]
    assert not found
