"""`varlog spark` without Spark: help, wrong usage, what is missing. Nothing of Java is started here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

import varlog.cli.spark.common as common
from varlog.cli.main import app
from varlog.cli.spark import spark
from varlog.cli.spark.common import Settings, run_job
from varlog.model.errors import InvalidRequest, StartupError, Unavailable
from varlog.spark.jobs.progress import Progress
from varlog.spark.options import OptionError
from varlog.testing.processes import PATIENCE_S

runner = CliRunner()


def varlog(*arguments: str) -> Result:
    return runner.invoke(app, ["spark", *arguments])


def bad(result: Result, code: int) -> str:
    assert result.exit_code == code, result.output
    assert len(result.stderr.splitlines()) == 1, result.stderr
    return result.stderr


@dataclass(frozen=True)
class Found:
    rows: int
    last_place: str = "here"


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that is none: jobs of these tests do not use it."""

    @contextmanager
    def session(*_: object, **__: object) -> Iterator[None]:
        yield None

    monkeypatch.setattr(common, "_session", session)


@pytest.mark.process
def test_help_loads_neither_spark_nor_arrow() -> None:
    script = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from varlog.cli.main import app\n"
        "result = CliRunner().invoke(app, ['spark', '--help'])\n"
        "assert result.exit_code == 0 and 'ingest' in result.output, result.output\n"
        "print(*sorted({'pyspark', 'pyarrow', 'py4j', 'pandas'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


def test_every_job_has_the_options_that_all_share() -> None:
    names = list(typer.main.get_group(spark).commands)
    assert {"ingest", "compact", "report"} <= set(names)
    for name in names:
        output = runner.invoke(app, ["spark", name, "--help"], terminal_width=200).output
        assert all(option in output for option in ("--master", "--conf", "--json", "--quiet")), name


def test_a_wrong_setting_is_refused_before_spark_starts() -> None:
    assert "--conf needs KEY=VALUE, not 'nonsense'" in bad(varlog("report", "t", "--conf", "nonsense"), 2)
    assert "--option needs KEY=VALUE, not '=x'" in bad(varlog("ingest", "t", "/in", "--option", "=x"), 2)


def test_a_cluster_that_does_not_answer_is_reported_before_spark_starts() -> None:
    output = bad(varlog("report", "t", "--cluster", "127.0.0.1:1"), 1)
    assert "127.0.0.1:1" in output and "varlog up" in output


def test_under_spark_submit_the_master_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    output = bad(varlog("report", "t", "--master", "local[2]"), 2)
    assert "pass --master to spark-submit" in output


@pytest.mark.process
def test_the_launcher_is_a_program_for_spark_submit() -> None:
    path = Path(varlog("--launcher").stdout.strip())
    assert path.suffix == ".py"  # by which spark-submit knows that it is Python
    done = subprocess.run(
        [sys.executable, str(path), "report", "--help"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0 and "varlog spark report" in done.stdout, done.stderr


def test_without_spark_the_remedy_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(typer.Exit) as ended:
        run_job("job", lambda spark, progress: Found(1), Settings())
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err == "varlog: error: Spark is not installed: pip install 'varlog[spark]'\n"


@pytest.mark.usefixtures("no_spark")
def test_a_report_is_lines_for_people_and_json_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    run_job("job", lambda spark, progress: Found(7), Settings())
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["rows", "7"],
        ["last", "place", "here"],
    ]
    run_job("job", lambda spark, progress: Found(7), Settings(as_json=True))
    assert json.loads(capsys.readouterr().out) == {"rows": 7, "last_place": "here"}


@pytest.mark.usefixtures("no_spark")
def test_a_report_that_is_not_good_is_printed_and_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        run_job(
            "job",
            lambda spark, progress: Found(7),
            Settings(as_json=True),
            good=lambda found: found.rows == 0,
        )
    assert ended.value.exit_code == 1 and json.loads(capsys.readouterr().out)["rows"] == 7


@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (OptionError("option 'key' is\n  wrong"), 2, "option 'key' is wrong"),
        (InvalidRequest("no such thing"), 2, "no such thing"),
        (Unavailable("nobody there"), 1, "nobody there"),
        (StartupError("no Java"), 1, "no Java"),
        (OSError(28, "No space left on device"), 1, "[Errno 28] No space left on device"),
        (KeyError("x"), 1, "'x'"),
        (RuntimeError(), 1, "RuntimeError"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    error: Exception, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def job(spark: object, progress: Progress) -> Found:
        raise error

    with pytest.raises(typer.Exit) as ended:
        run_job("job", job, Settings())
    assert ended.value.exit_code == code
    assert capsys.readouterr().err == f"varlog: error: {message}\n"


@pytest.mark.usefixtures("no_spark")
def test_ctrl_c_ends_it_quietly(capsys: pytest.CaptureFixture[str]) -> None:
    def job(spark: object, progress: Progress) -> Found:
        raise KeyboardInterrupt

    with pytest.raises(typer.Exit) as ended:
        run_job("job", job, Settings())
    assert ended.value.exit_code == 130 and capsys.readouterr().err == ""
