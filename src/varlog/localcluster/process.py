"""ServerProcess: a child process with its log file, signals and exit code.

No method blocks, except `wait` and `close`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# The child reads its parent's process id here, and dies with it.
PARENT_VARIABLE = "VARLOG_PARENT_PID"


class ServerProcess:
    """`vsn`, `vmr`, `vmc` or `vseq` with its arguments. Dies with this process, even if this one is killed."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log: Path,
        *,
        prefix: Sequence[str] = (),
        module: str = "varlog.cli.serve",
    ) -> None:
        """`prefix` is put before the command, for example to run it in a network namespace. It must keep the process id."""
        self.name = name
        self.log = log
        self._arguments = [*prefix, sys.executable, "-m", module, *arguments]
        self._popen: subprocess.Popen[bytes] | None = None
        self._output = b""

    def start(self) -> None:
        """Must be called in a thread that lives as long as the child: the kernel regards that thread as the parent."""
        self.close()
        self._output = b""
        environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C in the terminal reaches only the supervisor, which stops the children in order.
            self._popen = subprocess.Popen(
                self._arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        if self._popen.stdout is not None:
            os.set_blocking(self._popen.stdout.fileno(), False)

    @property
    def pid(self) -> int:
        return self._popen.pid if self._popen is not None else 0

    def ended(self) -> int | None:
        """Its exit code (negative: the signal that ended it), None while it runs."""
        return self._popen.poll() if self._popen is not None else 0

    def address(self) -> str:
        """The address from its `ready` line; empty before that."""
        if self._popen is not None and self._popen.stdout is not None and b"\n" not in self._output:
            self._output += self._popen.stdout.read() or b""
        word, _, rest = self._output.partition(b"\n")[0].partition(b" ")
        return rest.decode() if word == b"ready" and b"\n" in self._output else ""

    def signal(self, number: signal.Signals) -> None:
        if self._popen is not None and self._popen.poll() is None:
            self._popen.send_signal(number)

    def wait(self, timeout_s: float) -> bool:
        """True if it ended within the time."""
        if self._popen is None:
            return True
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Kill it if it still runs, and close its pipe."""
        if self._popen is None:
            return
        if self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait()
        if self._popen.stdout is not None:
            self._popen.stdout.close()
        self._popen = None

    def last_words(self) -> str:
        """The last line of its log, without the command's name: usually the reason why it ended."""
        try:
            lines = self.log.read_text("utf-8", "replace").splitlines()
        except OSError:
            return ""
        last = next((line for line in reversed(lines) if line.strip()), "")
        return last.partition(": error: ")[2] or last
