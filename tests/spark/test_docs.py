"""docs/guide/spark.md and examples/ do what they say: blocks of Python and of `varlog …` are run in order, outputs are compared."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import varlog
from varlog.cli.main import app
from varlog.spark.options import BATCH, READ, STREAM, TOPICS, WHERE, WRITE
from varlog.testing.tcp_cluster import WAIT_S, TcpCluster

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guide" / "spark.md").read_text("utf-8")
# What `varlog up` has; the tests' cluster listens elsewhere.
ADDRESS = "127.0.0.1:7100"


@dataclass(frozen=True)
class Block:
    """A fenced block: what kind, what is in it, where, and what the page says it prints ("": nothing is said)."""

    language: str
    code: str
    line: int
    prints: str = ""


def blocks(page: str) -> list[Block]:
    found: list[Block] = []
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        language, code = match.groups()
        line = page.count("\n", 0, match.start()) + 2
        if language == "text" and found:
            last = found.pop()
            found.append(Block(last.language, last.code, last.line, code))
        else:
            found.append(Block(language, code, line))
    return found


class Place:
    """Where the page is acted out: on a cluster, and in a directory that Java need not be in."""

    def __init__(self, address: str, directory: Path) -> None:
        self.address = address
        self._directory = directory

    def said(self, text: str) -> str:
        """What the page says, said for this place."""
        return text.replace(ADDRESS, self.address).replace("work/", f"{self._directory}/")


def run_python(block: Block, names: dict[str, object], place: Place) -> str:
    source = place.said(block.code)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        # Lines as in the page, so that a traceback leads there.
        exec(compile("\n" * (block.line - 1) + source, "docs/guide/spark.md", "exec"), names)
    return out.getvalue()


def run_shell(block: Block, place: Place) -> None:
    for line in block.code.splitlines():
        program, *arguments = shlex.split(place.said(line), comments=True)
        assert program == "varlog", (
            f"docs/guide/spark.md:{block.line}: only varlog is run here, the rest is console"
        )
        ran = CliRunner().invoke(app, [*arguments, "--cluster", place.address])
        assert ran.exit_code == 0, f"docs/guide/spark.md:{block.line}: {line}: {ran.output} {ran.exception!r}"


def test_every_block_of_the_page_runs_and_prints_what_stands_below_it(
    spark: SparkSession, cluster: TcpCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The commands' session would be one more Java, and takes longer to start than the job to run.
    monkeypatch.setattr(
        "varlog.cli.spark.common._session", lambda *_, **__: contextlib.nullcontext(spark), raising=True
    )
    place, names = Place(cluster.repository.address, tmp_path), dict[str, object]()
    ran = 0
    for block in blocks(PAGE):
        if block.language == "sh":
            run_shell(block, place)
        elif block.language == "python":
            printed = run_python(block, names, place)
            if block.prints:
                assert lines(printed) == lines(block.prints), f"docs/guide/spark.md:{block.line}"
            ran += 1
    assert ran > 15


def test_the_first_step_on_spark_prints_what_stands_below_it(
    spark: SparkSession, cluster: TcpCluster, tmp_path: Path
) -> None:
    page = (ROOT / "docs/getting-started.md").read_text("utf-8")
    [step] = [block for block in blocks(page) if "varlog.spark" in block.code]
    address = cluster.repository.address
    with varlog.connect(address, topic="default", create=True, timeout_s=WAIT_S) as log:
        log.append_batch([b"hello", b"world"])
        log.trim(1)
    assert lines(run_python(step, {}, Place(address, tmp_path))) == lines(step.prints)


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def test_every_option_is_in_the_page() -> None:
    table = PAGE.split("## Options", 1)[1].split("## Jobs", 1)[0]
    every = {*WHERE, *TOPICS, *READ, *BATCH, *STREAM, *WRITE}
    assert {option for option in every if f"`{option}`" not in table} == set()


def test_every_job_is_in_the_page() -> None:
    from varlog.cli.spark import spark as group

    jobs = {
        command.name or command.callback.__name__ for command in group.registered_commands if command.callback
    }
    assert {job for job in jobs if f"### {job}\n" not in PAGE} == set()


def test_links_inside_the_page_lead_somewhere() -> None:
    headings = {
        re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in PAGE.splitlines()
        if line.startswith("#")
    }
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= headings
    files = re.findall(r"\]\(([^)#:]+)\)", PAGE)
    assert [connection for connection in files if not (ROOT / "docs/guide" / connection).exists()] == []
