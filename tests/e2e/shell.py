"""A shell that types what a page shows, against servers that listen elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.pages import Block
from varlog.testing.processes import PATIENCE_S

PROMPT = "$ "
MORE = "…"
# Where the reader of a page is.
HOME = "/home/you"
NO_MASKS: Mapping[str, str] = {}
TIMES = {r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)": "TIME"}
STAND_IN = Path(__file__).with_name("curl_stand_in.py")


@dataclass(frozen=True)
class Typed:
    """One typed line, and the output that the page shows below it."""

    command: str
    shown: str
    where: str


def typed_in(block: Block) -> Iterator[Typed]:
    """The lines of a block behind a prompt, each with what follows it."""
    for part in re.split(r"^\$ ", block.code, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield Typed(command, shown, f"{block}: {command}")


class Shell:
    """`ports`: the real port for each port of 127.0.0.1 on the page. curl is configured accordingly; its output, and
    that of `varlog`, is translated back."""

    def __init__(self, directory: Path, ports: Mapping[int, int], *, real_curl: bool = True) -> None:
        self._directory = directory
        self._ports = ports
        bin_directory = directory / "bin"
        bin_directory.mkdir()
        if not real_curl or shutil.which("curl") is None:
            stand_in = bin_directory / "curl"
            stand_in.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n')
            stand_in.chmod(0o755)
        settings = "".join(
            f'connect-to = "127.0.0.1:{said}:127.0.0.1:{real}"\n' for said, real in ports.items()
        )
        (directory / ".curlrc").write_text("silent\n" + settings)
        path = os.pathsep.join([str(bin_directory), str(Path(sys.executable).parent), os.environ["PATH"]])
        repository = ports.get(7100)
        cluster = {} if repository is None else {"VARLOG_CLUSTER": f"127.0.0.1:{repository}"}
        self.environment = {
            **os.environ,
            **cluster,
            "PATH": path,
            "CURL_HOME": str(directory),
            "CURL_STAND_IN": " ".join(f"{said}:{real}" for said, real in ports.items()),
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }

    def run(self, command: str) -> str:
        """Everything it prints, as the page would show it."""
        return self._run(["sh", "-c", command])

    def run_python(self, code: str) -> str:
        """The same for a program, which finds its cluster where it is."""
        for said, real in self._ports.items():
            code = code.replace(f"127.0.0.1:{said}", f"127.0.0.1:{real}")
        return self._run([sys.executable, "-c", code])

    def as_shown(self, printed: str) -> str:
        """With the page's ports and directory."""
        printed = printed.replace(str(self._directory), HOME)
        for said, real in self._ports.items():
            printed = printed.replace(f"127.0.0.1:{real}", f"127.0.0.1:{said}")
        return printed

    def _run(self, command: list[str]) -> str:
        ran = subprocess.run(
            command,
            cwd=self._directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return self.as_shown(ran.stdout)


def alike(printed: str, shown: str, *, masks: Mapping[str, str] = NO_MASKS) -> bool:
    """Whether both are the same, except for times, spaces, what the masks replace, and what the page omits: a line of
    its own with an ellipsis."""
    ours, theirs = _lines(printed, masks), _lines(shown, masks)
    if MORE not in theirs:
        return ours == theirs
    begin, end = theirs[: theirs.index(MORE)], theirs[theirs.index(MORE) + 1 :]
    return ours[: len(begin)] == begin and ours[len(ours) - len(end) :] == end


def _lines(text: str, masks: Mapping[str, str]) -> list[str]:
    for pattern, said in {**TIMES, r"[ \t]+": " ", **masks}.items():
        text = re.sub(pattern, said, text)
    return [line.strip() for line in text.strip().splitlines()]
