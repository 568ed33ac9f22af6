"""The specification is in the repository: each rule is proved by a test, and each citation names a rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import requirements
from tools.codemap import CodemapError
from tools.requirements import Citation, Rule

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs/reference/requirements.md"
# This file makes up rules of its own.
TESTS = [path for path in requirements.test_files(ROOT) if path != Path(__file__)]
TEXTS = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob("src/**/*.py"),
    *ROOT.glob("examples/**/*.py"),
    *ROOT.glob("benchmarks/**/*.py"),
    *TESTS,
]


def _rules() -> list[Rule]:
    return requirements.rules_in(DOCUMENT.read_text("utf-8"))


def _citations() -> list[Citation]:
    return requirements.citations_under(ROOT, TESTS)


def test_each_citation_names_a_rule_of_the_specification() -> None:
    known = {rule.number for rule in _rules()}
    unknown = {
        f"{path.relative_to(ROOT)} cites {found}"
        for path in TEXTS
        for found in requirements.CITATION.findall(path.read_text("utf-8"))
        if found not in known
    }
    assert unknown == set()


def test_each_rule_that_is_built_is_proved_by_a_test_and_no_other_rule_is() -> None:
    proved = {citation.rule for citation in _citations() if citation.test}
    assert {rule.number for rule in _rules() if rule.built} == proved


def test_a_rule_has_one_number() -> None:
    numbers = [rule.number for rule in _rules()]
    assert sorted(numbers) == sorted(set(numbers))


def test_tests_cite_rules_only_where_they_prove_them() -> None:
    assert [str(citation) for citation in _citations() if not citation.test] == []


def test_the_list_of_tests_is_current() -> None:
    document = DOCUMENT.read_text("utf-8")
    assert requirements.update_document(document, _citations()) == document, "run `make requirements`"


def test_a_citation_proves_a_rule_in_the_docstring_of_a_test_or_of_an_invariant_alone() -> None:
    source = '''"""R-A-1 of a module."""
# R-A-2 in a comment
def helper():
    """R-A-3 of a helper."""
class Machine:
    @invariant()
    def holds(self):
        """Holds always.

        R-A-4, R-A-5.
        """
def test_it():
    """R-A-6."""
    assert "R-A-7"
'''
    proofs = {c.rule: (c.line, c.test) for c in requirements.citations_in("tests/test_it.py", source)}
    assert proofs == {
        "R-A-1": (1, ""),
        "R-A-2": (2, ""),
        "R-A-3": (4, ""),
        "R-A-4": (10, "holds"),
        "R-A-5": (10, "holds"),
        "R-A-6": (13, "test_it"),
        "R-A-7": (14, ""),
    }


def test_rules_are_read_with_their_whole_sentence() -> None:
    document = "# Rules\n\n- **R-A-1** One\n  sentence.\n- **R-A-2** Another. Not built yet.\n\n## More\n- **R-B-1** Last.\n"
    rules = requirements.rules_in(document)
    assert rules == [
        Rule("R-A-1", "One sentence."),
        Rule("R-A-2", "Another. Not built yet."),
        Rule("R-B-1", "Last."),
    ]
    assert [rule.built for rule in rules] == [True, False, True]


def test_the_rendered_list_names_each_test_once_per_file() -> None:
    rules = [Rule("R-A-1", "One."), Rule("R-A-2", "Two. Not built yet.")]
    cited = [
        Citation("R-A-1", "tests/b.py", 3, "test_b"),
        Citation("R-A-1", "tests/a.py", 9, "test_z"),
        Citation("R-A-1", "tests/a.py", 1, "test_a"),
        Citation("R-A-1", "tests/a.py", 2, "test_a"),
        Citation("R-A-1", "tests/a.py", 5, ""),
    ]
    assert requirements.render_proofs(rules, cited).splitlines() == [
        "### Tests of R-A-1",
        "",
        "- `tests/a.py`",
        "    - `test_a`",
        "    - `test_z`",
        "- `tests/b.py`",
        "    - `test_b`",
        "",
        "### Tests of R-A-2",
        "",
        "Not built yet.",
    ]


@pytest.mark.parametrize("document", ["", requirements.BEGIN, requirements.END])
def test_a_document_without_markers_is_refused(document: str) -> None:
    with pytest.raises(CodemapError, match="markers"):
        requirements.update_document(document, [])
