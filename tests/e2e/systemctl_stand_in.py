"""`systemctl` and `journalctl` for the hosts of tests.

Runs the ExecStart of a unit, and restarts it as the unit requires. Known: daemon-reload, enable, enable --now, start,
stop, restart, is-active; EnvironmentFile, StateDirectory, Restart, RestartSec. Users and the hardening of a unit are
not applied: the interpreter of a test may be readable by root alone.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

UNITS = Path("/etc/systemd/system")
STATE = Path("/var/lib")
RUNNING = Path("/run/systemctl-stand-in")
STOP_TIMEOUT_S = 60.0

Unit = dict[str, list[str]]


def unit_named(name: str) -> Unit:
    """The settings of a unit, each with all its values, in order."""
    settings: Unit = {}
    text = (UNITS / name).read_text("utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        if line and line[0] not in "#;[":
            key, _, value = line.partition("=")
            settings.setdefault(key.strip(), []).append(value.strip())
    return settings


def environment_of(unit: Unit) -> dict[str, str]:
    """What the files of the unit set. systemd needs no `export` in them and strips one pair of quotes."""
    found: dict[str, str] = {}
    for path in unit.get("EnvironmentFile", []):
        for line in Path(path).read_text("utf-8").splitlines():
            if line and not line.startswith("#"):
                key, _, value = line.partition("=")
                found[key.strip()] = value.strip().strip('"')
    return found


def command_of(unit: Unit, environment: Mapping[str, str]) -> list[str]:
    """ExecStart with its variables: `${NAME}` is part of a word, a word `$NAME` becomes any number of words."""
    words: list[str] = []
    for word in shlex.split(unit["ExecStart"][-1]):
        if re.fullmatch(r"\$\w+", word):
            words += environment.get(word[1:], "").split()
        else:
            words.append(re.sub(r"\$\{(\w+)\}", lambda match: environment.get(match[1], ""), word))
    return words


def supervise(name: str) -> None:
    """Run the unit until SIGTERM."""
    unit = unit_named(name)
    environment = environment_of(unit)
    for directory in " ".join(unit.get("StateDirectory", [])).split():
        (STATE / directory).mkdir(mode=0o700, parents=True, exist_ok=True)
    stopped = False
    child: subprocess.Popen[bytes] | None = None

    def stop(_number: int, _frame: object) -> None:
        nonlocal stopped
        stopped = True
        if child is not None:
            child.terminate()

    signal.signal(signal.SIGTERM, stop)
    while not stopped:
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        child = subprocess.Popen(command_of(unit, environment), env={"PATH": path, **environment})
        child.wait()
        if unit.get("Restart", ["no"])[-1] == "no":
            return
        if not stopped:
            time.sleep(float(unit.get("RestartSec", ["0.1"])[-1]))


def start(name: str) -> None:
    """Its supervisor, as a process of its own, unless it runs."""
    if is_active(name):
        return
    RUNNING.mkdir(exist_ok=True)
    with (RUNNING / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, __file__, "supervise", name],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (RUNNING / f"{name}.pid").write_text(str(process.pid), "utf-8")


def stop(name: str) -> None:
    if is_active(name):
        os.kill(_pid(name), signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while is_active(name):
            if time.monotonic() > deadline:
                sys.exit(f"{name} did not stop")
            time.sleep(0.05)


def is_active(name: str) -> bool:
    """Whether its supervisor lives."""
    try:
        state = Path(f"/proc/{_pid(name)}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
    except (OSError, ValueError):
        return False
    return state != "Z"


def _pid(name: str) -> int:
    return int((RUNNING / f"{name}.pid").read_text("utf-8"))


def systemctl(verb: str, *words: str) -> None:
    names = [
        word if word.endswith(".service") else f"{word}.service" for word in words if not word.startswith("-")
    ]
    for name in names:
        unit_named(name)  # a unit that does not exist fails here
        if verb in ("stop", "restart"):
            stop(name)
        if verb in ("start", "restart") or (verb == "enable" and "--now" in words):
            start(name)
        if verb == "is-active":
            print("active" if is_active(name) else "inactive")
    if verb not in ("daemon-reload", "enable", "start", "stop", "restart", "is-active"):
        sys.exit(f"systemctl: {verb} is not known here")


def journalctl(*words: str) -> None:
    name = words[words.index("-u") + 1]
    print((RUNNING / f"{name.removesuffix('.service')}.service.log").read_text("utf-8"), end="")


COMMANDS: Mapping[str, Callable[..., None]] = {
    "systemctl": systemctl,
    "journalctl": journalctl,
    "supervise": supervise,
}

if __name__ == "__main__":
    COMMANDS[sys.argv[1]](*sys.argv[2:])
