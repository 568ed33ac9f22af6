"""What the commands of all jobs share: options, session, progress, report, errors.

Exit codes: 0 success, 1 failure (or findings of an audit), 2 wrong usage.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from varlog.cli import output
from varlog.cli.output import FAILED, WRONG_USAGE, fail, make_console, make_table, print_json
from varlog.cli.target import DEFAULT_CLUSTER, ClusterOption, JsonOption, Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from varlog.spark.jobs.progress import Progress

__all__ = [
    "DEFAULT_CLUSTER",
    "ClusterOption",
    "ConfOption",
    "DryRunOption",
    "JsonOption",
    "MasterOption",
    "QuietOption",
    "Settings",
    "VerboseOption",
    "pairs",
    "run_job",
    "show_fields",
    "show_lines",
]

_SPARK = "Spark"
LOCAL = "local[*]"
# Errors of the request, not of the data: as in varlog.cli.output.
_WRONG = ("OptionError", "InvalidRequest", "EntryTooLarge", "BatchTooLarge", "NotInCluster")

MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help=f"Spark master [{LOCAL}]. With spark-submit, pass it there.",
        show_default=False,
        rich_help_panel=_SPARK,
    ),
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option(
        "--conf", metavar="KEY=VALUE", help="Spark setting; repeat for several.", rich_help_panel=_SPARK
    ),
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", help="Show Spark's own log on stderr.", rich_help_panel=_SPARK)
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Hide the progress bar.")]


class JobReport(Protocol):
    """What a job returns: a frozen dataclass of plain values."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


R = TypeVar("R", bound=JobReport)
SparkJob = Callable[["SparkSession", "Progress"], R]


@dataclass(frozen=True)
class Settings:
    """How a job is run: the options that all jobs have."""

    master: str | None = None
    conf: Sequence[str] | None = None
    as_json: bool = False
    quiet: bool = False
    verbose: bool = False


def show_fields(report: JobReport) -> None:
    """A report without tables of its own: one line per field."""
    names = [field.name for field in dataclasses.fields(report)]
    show_lines([(name.replace("_", " "), getattr(report, name)) for name in names])


def show_lines(lines: Iterable[tuple[str, object]]) -> None:
    """Names and values, one line each."""
    table = make_table("", ["what", "value"], lines)
    table.show_header = False
    make_console().print(table)


def run_job(
    name: str,
    job: SparkJob[R],
    settings: Settings,
    *,
    clusters: Sequence[str] = (),
    show: Callable[[R], None] = show_fields,
    good: Callable[[R], bool] = lambda _: True,
) -> None:
    """Run a job in a session of its own, print its report, exit. `clusters` must answer before Java is started, which
    takes long."""
    conf = pairs("--conf", settings.conf)
    master = _master(settings.master)
    for cluster in clusters:
        output.run_async(Target(cluster).ping())
    with _in_one_line(verbose=settings.verbose):
        report = _work(name, job, master, conf, settings)
    if settings.as_json:
        print_json(dataclasses.asdict(report))
    else:
        show(report)
    if not good(report):
        raise typer.Exit(FAILED)


def pairs(option: str, values: Sequence[str] | None) -> dict[str, str]:
    """The values of a repeated KEY=VALUE option."""
    parts = [setting.partition("=") for setting in values or ()]
    for key, equals, value in parts:
        if not key or not equals:
            fail(f"{option} needs KEY=VALUE, not {key + equals + value!r}", WRONG_USAGE)
    return {key.strip(): value for key, _, value in parts}


def _master(master: str | None) -> str:
    from varlog.spark.session import submitted

    if master is not None and submitted():
        fail("pass --master to spark-submit, not to the job", WRONG_USAGE)
    return master or LOCAL


def _work(name: str, job: SparkJob[R], master: str, conf: dict[str, str], settings: Settings) -> R:

    with bar(quiet=settings.quiet) as progress:
        progress("starting Spark", 0, 0)
        with _session(f"varlog {name}", master, conf, verbose=settings.verbose) as spark:
            return job(spark, progress)


@contextmanager
def _session(name: str, master: str, conf: dict[str, str], *, verbose: bool) -> Iterator[SparkSession]:
    spark = _start(name, master, conf, verbose=verbose)
    try:
        yield spark
    finally:
        with suppress(Exception):  # a signal to the whole process group may have ended Java first
            spark.stop()


def _start(name: str, master: str, conf: dict[str, str], *, verbose: bool) -> SparkSession:
    from varlog.model.errors import StartupError
    from varlog.spark.failure import spark_failure
    from varlog.spark.session import FAST_SOCKETS, prepare, session, submitted

    prepare()
    if not verbose:
        _silence_python()
    if verbose or submitted():
        return session(name, master, conf)
    with capture_jvm_stderr() as captured:
        try:
            # Errors reach the user through the job's exception: Spark's log would repeat them with every stack.
            return session(name, master, {"spark.log.level": "OFF", **FAST_SOCKETS, **conf})
        except StartupError:
            raise
        except Exception as error:  # Java and its bridge raise many types
            raise StartupError(
                f"Spark did not start: {spark_failure(error).message} {captured.last()}"
            ) from error


def _silence_python() -> None:
    """PySpark warns about the next version of pandas, and prints the stack of a failed query beside the exception."""
    from pyspark.logger import PySparkLogger

    warnings.filterwarnings("ignore", category=FutureWarning, module=r"pyspark\..*")
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


@contextmanager
def _in_one_line(*, verbose: bool) -> Iterator[None]:
    from varlog.spark.failure import spark_failure

    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except Exception as error:  # noqa: BLE001 - of Spark, Java or a worker's Python: all are reported
        if verbose:
            traceback.print_exc()
        failure = spark_failure(error)
        wrong = failure.kind in _WRONG or _refuses_an_option(error)
        fail(failure.message, WRONG_USAGE if wrong else FAILED)


def _refuses_an_option(error: Exception) -> bool:
    """A job's own refusal of its options: it has not begun."""
    return isinstance(error, ValueError) and type(error).__module__.startswith("varlog.")


# --- a job on the terminal: its progress bar, and Java's captured stderr --------------------------------------------------------


class Bar:
    """One line, which shows the current step."""

    def __init__(self, bar: RichProgress) -> None:
        self._bar = bar
        self._task: TaskID | None = None
        self._what = ""

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._task is None or what != self._what:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task, self._what = self._bar.add_task(what, total=None), what
        self._bar.update(self._task, completed=done, total=total or None)


@contextmanager
def bar(*, quiet: bool) -> Iterator[Progress]:
    """A callback for the progress of a job."""
    from varlog.spark.jobs.progress import silent

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield silent
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with RichProgress(*columns, console=console, transient=True, refresh_per_second=5) as live:
        yield Bar(live)


# Of Java's stderr, where Spark does not start.
LINES_SHOWN = 5


class CapturedStderr:
    """A nameless file that replaces stderr; it is deleted with the last process that has it open."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - Java writes to it as long as it lives

    def fileno(self) -> int:
        return self._file.fileno()

    def last(self) -> str:
        """Its last lines without stack frames: why Java did not start."""
        self._file.seek(0)
        lines = [line.strip() for line in self._file.read().decode("utf-8", "replace").splitlines()]
        return " ".join([line for line in lines if not line.startswith(("at ", "WARNING: "))][-LINES_SHOWN:])


@contextmanager
def capture_jvm_stderr() -> Iterator[CapturedStderr]:
    """Processes started inside the block write their stderr to the file for good; this process gets its own back afterwards."""
    captured = CapturedStderr()
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(captured.fileno(), 2)
    try:
        yield captured
    finally:
        os.dup2(kept, 2)
        os.close(kept)
