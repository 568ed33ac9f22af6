"""Small habits that are easier to keep from the first day: tests that can fail, files of one noun, no loose ends."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py")])
TEST_MODULES = [path for path in SOURCES if path.name.startswith("test_")]

FILE_LINES_MAX = 800
# The words by which the docstring of a longer file gives its reason.
LONG_BECAUSE = "past 800 lines because"

# Spelled apart, or this file would be the first to fail.
LOOSE_END = re.compile("|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X"]))
TEXTS = [
    *SOURCES,
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    ROOT / "Makefile",
    ROOT / "pyproject.toml",
    *ROOT.glob(".github/**/*.*"),
]

# What users and readers of the code see; decisions keep the words of their time.
PROSE = [
    *ROOT.glob("src/**/*.py"),
    *ROOT.glob("src/**/*.js"),
    *ROOT.glob("src/**/*.html"),
    *(path for path in ROOT.glob("docs/**/*.md") if path.parent.name != "decisions"),
    *ROOT.glob("examples/*.py"),
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
]
# Words that crept in before: archaic or translated ones, metaphors for parts of the log, and a process as a person.
RETIRED = re.compile(
    r"\b(who(?:m)?ever|anew|\w*manieth|reigns?|deeds?|couriers?|parcels?|for ever|under way|(?:go|goes|went|gone|going) on"
    r"|he|him|his|himself|somebody|mend(?:s|ed|ing|er)?|spoilt|verdicts?|judgements?)\b",
    re.IGNORECASE,
)
# Tests use none of these either, also not in names; this file lists them. Verbs of speech are no words for data flow.
TESTS = [path for path in ROOT.glob("tests/**/*.py") if path != Path(__file__)]
RETIRED_IN_TESTS = re.compile(
    rf"{RETIRED.pattern}|\b(anybody|tell(?:s|ing)?|told|hears?|hearing|doors?|so many)\b", re.IGNORECASE
)
LABEL_MAX = 80

# A call that fails the test by itself: pytest.raises, check_prefixes, assert_equal, run_state_machine_as_test ...
CHECKING_CALL = re.compile(
    r"(.*\.)?_?(check|assert|expect|verify|run_state_machine_as_test|fail\b|raises\b|warns\b).*"
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def _calls(function: Function) -> set[str]:
    return {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}


def idle_tests(tree: ast.Module) -> list[str]:
    """Names of test functions that check nothing, neither themselves nor through a helper of their module."""
    functions = list(_functions(tree))
    calls = {
        function.name: {call.removeprefix("self.") for call in _calls(function)} for function in functions
    }
    checking = {
        function.name
        for function in functions
        if any(isinstance(node, ast.Assert) for node in ast.walk(function))
        or any(CHECKING_CALL.fullmatch(call) for call in calls[function.name])
    }
    while more := {name for name, called in calls.items() if called & checking} - checking:
        checking |= more  # each round follows the helpers one call deeper
    return [f.name for f in functions if f.name.startswith("test_") and f.name not in checking]


def too_long(source: str) -> bool:
    """Past the limit, and the docstring does not say why."""
    reason = ast.get_docstring(ast.parse(source)) or ""
    return len(source.splitlines()) > FILE_LINES_MAX and LONG_BECAUSE not in " ".join(reason.lower().split())


def retired_words(text: str, pattern: re.Pattern[str] = RETIRED) -> list[tuple[int, str]]:
    """Line number and word of each."""
    return [
        (number, found[0])
        for number, line in enumerate(text.splitlines(), 1)
        for found in pattern.finditer(line)
    ]


def bad_label(source: str) -> str:
    """The first docstring line of a module that is no label: too long, or without a full stop; "" if it is one."""
    label = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
    return label if label and (len(label) > LABEL_MAX or not label.endswith(".")) else ""


def test_every_test_can_fail() -> None:
    idle = {_name(path): idle_tests(ast.parse(path.read_text("utf-8"))) for path in TEST_MODULES}
    assert {path: names for path, names in idle.items() if names} == {}


def test_a_long_file_says_why_or_is_cut_along_a_seam() -> None:
    assert [_name(path) for path in SOURCES if too_long(path.read_text("utf-8"))] == []


def test_no_loose_ends_are_left_in_the_text() -> None:
    found = [
        f"{_name(path)}:{number}"
        for path in TEXTS
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if LOOSE_END.search(line)
    ]
    assert found == []


def test_prose_uses_none_of_the_retired_words() -> None:
    found = [
        f"{_name(path)}:{number}: {word}"
        for path in PROSE
        for number, word in retired_words(path.read_text("utf-8"))
    ]
    assert found == []


def test_tests_and_their_names_use_none_of_the_retired_words() -> None:
    found = [
        f"{_name(path)}:{number}: {word}"
        for path in TESTS
        for number, word in retired_words(path.read_text("utf-8").replace("_", " "), RETIRED_IN_TESTS)
    ]
    assert found == []


def test_a_module_begins_with_a_label_of_one_short_line() -> None:
    labels = {_name(path): bad_label(path.read_text("utf-8")) for path in ROOT.glob("src/**/*.py")}
    assert {path: label for path, label in labels.items() if label} == {}


@pytest.mark.parametrize(
    "line",
    [
        "# Whoever reads it",
        "it begins anew",
        "the so-manieth batch",
        "for ever",
        "the append goes on",
        "a node and his disk",
        "Verdicts",
        "what is under way",
        "the disk is mended",
    ],
)
def test_a_retired_word_is_recognised(line: str) -> None:
    assert [number for number, _ in retired_words(f"fine\n{line}\n")] == [2]


@pytest.mark.parametrize(
    "line",
    ["forever", "the history of this", "sovereign", "append on", "recommended", "indeed", "underway_s"],
)
def test_a_word_that_contains_a_retired_one_is_none(line: str) -> None:
    assert retired_words(line) == []


@pytest.mark.parametrize(
    ("docstring", "is_bad"),
    [
        ("A label.", False),
        ("x" * 79 + ".", False),
        ("x" * 80 + ".", True),
        ("No full stop", True),
        ("", False),
    ],
)
def test_a_long_label_is_recognised(docstring: str, is_bad: bool) -> None:
    assert bool(bad_label(f'"""{docstring}"""\n' if docstring else "x = 1\n")) is is_bad


@pytest.mark.parametrize(
    "body",
    [
        "assert x",
        "with pytest.raises(ValueError): f()",
        "check_prefixes(history)",
        "def body():\n        assert x\n    run(body())",
        "helper()",
    ],
)
def test_a_test_that_checks_something_is_recognised(body: str) -> None:
    source = f"def helper():\n    deeper()\ndef deeper():\n    assert y\ndef test_it():\n    {body}\n"
    assert idle_tests(ast.parse(source)) == []


def test_a_test_that_checks_nothing_is_recognised() -> None:
    source = "def test_it():\n    log.append(b'x')\nasync def test_that():\n    print(1)\n"
    assert idle_tests(ast.parse(source)) == ["test_it", "test_that"]


def test_a_long_file_is_recognised_unless_it_gives_its_reason() -> None:
    lines = "x = 1\n" * FILE_LINES_MAX
    assert not too_long(lines)
    assert too_long('"""One noun."""\n' + lines)
    assert not too_long('"""One noun.\n\nPast 800 lines\nbecause a table is one thing.\n"""\n' + lines)
