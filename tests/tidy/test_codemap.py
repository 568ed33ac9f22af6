"""The code map is what the modules say of themselves today."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import codemap

ROOT = Path(__file__).parents[2]


def _package(tmp_path: Path, files: dict[str, str]) -> Path:
    package = tmp_path / "pkg"
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return package


def test_every_module_says_in_its_docstring_what_it_is() -> None:
    silent = []
    for module in sorted(codemap.PACKAGE.rglob("*.py")):
        try:
            codemap.first_docstring_line(module)
        except codemap.CodemapError as problem:
            silent.append(str(problem))
    assert silent == []


def test_the_code_map_is_current() -> None:
    text = (ROOT / "docs/internals/codemap.md").read_text(encoding="utf-8")
    assert codemap.update_codemap(text, codemap.PACKAGE) == text, "the code map is stale: run `make codemap`"


def test_the_map_goes_from_the_bottom_layer_up_and_keeps_the_text_around_it(tmp_path: Path) -> None:
    package = _package(
        tmp_path,
        {
            "__init__.py": '"""The whole."""',
            "aio.py": '"""The public side.\n\nAnd more that the map leaves out.\n"""',
            "cli/__init__.py": '"""Commands."""',
            "model/__init__.py": '"""Values."""',
            "model/lsn.py": '"""Positions."""',
            "model/deep/__init__.py": '"""Deeper."""',
            "model/deep/er.py": '"""Deepest."""',
        },
    )
    assert codemap.update_codemap(f"head\n{codemap.BEGIN}old{codemap.END}\ntail", package).splitlines() == [
        "head",
        codemap.BEGIN,
        "```text",
        "pkg/         The whole.",
        "  model/     Values.",
        "    lsn.py   Positions.",
        "    deep/    Deeper.",
        "      er.py  Deepest.",
        "  aio.py     The public side.",
        "  cli/       Commands.",
        "```",
        codemap.END,
        "tail",
    ]


def test_a_silent_module_a_nameless_package_and_missing_markers_are_named(tmp_path: Path) -> None:
    package = _package(
        tmp_path,
        {"__init__.py": '"""The whole."""', "model/__init__.py": '"""Values."""', "model/lsn.py": "x = 1"},
    )
    with pytest.raises(codemap.CodemapError, match=r"lsn\.py has no docstring"):
        codemap.render_codemap(package)
    (package / "model" / "__init__.py").unlink()
    with pytest.raises(codemap.CodemapError, match=r"model has no __init__\.py"):
        codemap.render_codemap(package)
    sound = _package(tmp_path / "sound", {"__init__.py": '"""The whole."""'})
    with pytest.raises(codemap.CodemapError, match="markers"):
        codemap.update_codemap("no markers here", sound)
