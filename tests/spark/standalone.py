"""Standalone: a master of Spark and workers on addresses of their own, each a process: what several hosts would be, on this one."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from varlog.localcluster.ports import free_ports
from varlog.spark.session import prepare

HOME = Path(pyspark.__file__).parent
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@contextmanager
def standalone(path: Path, workers: int = 2) -> Iterator[str]:
    """The address of a master with `workers` workers of one core each. Spark gives a speculative attempt to another host alone, so
    each worker has its own loopback address. A driver waits for them itself."""
    prepare()
    [port] = free_ports(1)
    address = f"spark://127.0.0.1:{port}"
    started = [
        _daemon(path, "master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
    ]
    try:
        for number in range(workers):
            limits = ("-c", "1", "-m", "600m", "-d", str(path / "work"), "--webui-port", "0")
            started.append(
                _daemon(path, "worker.Worker", "--host", f"127.0.0.{number + 2}", *limits, address)
            )
        yield address
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _daemon(path: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    quick = {
        "SPARK_HOME": str(HOME),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": f"{QUICK} -XX:-UsePerfData",
        # Killed processes leave their files: below the test's own directory.
        "TMPDIR": str(path),
        "SPARK_LOCAL_DIRS": str(path),
        "JDK_JAVA_OPTIONS": f"-Djava.io.tmpdir={path}",
    }
    return subprocess.Popen(
        [HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *arguments],
        env={**os.environ, **quick},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=path,
        start_new_session=True,
    )
