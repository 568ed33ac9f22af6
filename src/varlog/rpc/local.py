"""[A3 R3] Local sockets: a loopback server is reached by a Unix socket, too.

Two processes of one machine pay for TCP what two machines need: segments, acknowledgements, timers. A Unix socket
carries the same frames for about half of the processor time. Its name follows from the address, and from the network
namespace, because namespaces have their ports for themselves and share the file system.

The sockets lie in a directory that their user alone can enter (mode 0700): in $VARLOG_RUNTIME_DIR, else in `varlog` of
$XDG_RUNTIME_DIR or of /run/user/<uid>, else in /tmp/varlog-<uid>. A directory that is a symbolic link or belongs to
another user is not used. Both sides also ask the kernel which user the other one is, and accept their own user and root
only. Without a socket the port is dialled.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import sys
import time
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from varlog.model.limits import MIB
from varlog.runtime.logging import get_logger, logfmt

# The kernel allows 208 KiB in flight by default: a batch of a MiB would take five turns of both sides.
BUFFER_BYTES: Final = 2 * MIB
# A process that was killed leaves its name behind. One that is older than this, and at which no process listens, is removed.
STALE_AFTER_S: Final = 60.0

_LINUX: Final = sys.platform == "linux"
_EVERYWHERE: Final = ("0.0.0.0", "::", "")
_CREDENTIALS: Final = struct.Struct("3i")  # process, user, group
# What a Unix socket's address holds, without the zero byte at its end.
_PATH_BYTES_MAX: Final = 107
_SUFFIX: Final = ".sock"
_DIRECTORY_VARIABLE: Final = "VARLOG_RUNTIME_DIR"

_log = get_logger("rpc")
_refused: set[Path] = set()  # directories that were logged


def name_of(host: str, port: int) -> str | None:
    """The path of the socket of a server at this address, if it is one of this machine alone, and there is a place for sockets.
    Listening everywhere is listening here."""
    if not _LINUX:
        return None
    if host == "localhost" or host in _EVERYWHERE:
        host = "127.0.0.1"
    try:
        here = ip_address(host).is_loopback
    except ValueError:  # a name of some host
        return None
    directory = _directory() if here else None
    if directory is None:
        return None
    path = str(directory / f"{_namespace()}-{host}-{port}{_SUFFIX}")
    # A directory with such a long name has no room for sockets: the port is always there.
    return path if len(os.fsencode(_fresh(path))) <= _PATH_BYTES_MAX else None


def listen(name: str, backlog: int) -> socket.socket:
    """A socket that listens at `name`. OSError EADDRINUSE: another process does. What a dead one left there goes."""
    _remove_stale(Path(name).parent)
    wire = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    fresh = _fresh(name)
    try:
        if _is_served(name):
            raise OSError(errno.EADDRINUSE, "another process listens there", name)
        # It gets its name when it listens already: what has a name and refuses is certainly dead.
        Path(fresh).unlink(missing_ok=True)
        wire.bind(fresh)
        os.chmod(fresh, 0o600)
        wire.setblocking(False)
        wire.listen(backlog)
        os.rename(fresh, name)
    except OSError:
        Path(fresh).unlink(missing_ok=True)
        wire.close()
        raise
    return wire


def forget(name: str) -> None:
    """The server that listens at `name` ends: it is not found any more."""
    Path(name).unlink(missing_ok=True)


def connect_local(name: str) -> socket.socket | None:
    """A socket that is connected to `name`; None if no process listens there, or none that is trusted, or none that
    accepts immediately."""
    wire = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        wire.setblocking(False)
        wire.connect(name)
        if is_trusted(wire):
            return wire
    except OSError:
        pass
    wire.close()
    return None


def is_trusted(wire: socket.socket) -> bool:
    """Whether the process at the other end is of our own user, or root's."""
    return credentials_of(wire)[1] in (os.geteuid(), 0)


def credentials_of(wire: socket.socket) -> tuple[int, int, int]:
    """Process, user and group of the other side, as the kernel noted them when it connected or began to listen."""
    found: tuple[int, int, int] = _CREDENTIALS.unpack(
        wire.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return found


def _directory() -> Path | None:
    """The directory of this user's sockets; created if missing. None: there is none, and the reason is logged once."""
    user = os.geteuid()
    chosen = os.environ.get(_DIRECTORY_VARIABLE)
    if chosen:
        return _private(Path(chosen))
    for base in (os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{user}"):
        if base and _owner_of(Path(base)) == user:
            return _private(Path(base, "varlog"))
    return _private(Path(f"/tmp/varlog-{user}"))


def _private(path: Path) -> Path | None:
    """`path`, if it is a directory of ours that no other user can enter; created if missing."""
    try:
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it is not a directory of this user", str(path))
        if found.st_mode & 0o077:
            os.chmod(path, 0o700)
    except OSError as error:
        if path not in _refused:
            _refused.add(path)
            why = error.strerror or str(error)
            _log.warning(logfmt("no local sockets, TCP alone", directory=path, why=why))
        return None
    return path


def _owner_of(path: Path) -> int | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_uid if stat.S_ISDIR(found.st_mode) else None


def _namespace() -> int:
    """The number of our network namespace."""
    try:
        return os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return 0


def _fresh(name: str) -> str:
    """Where a socket is made that will be at `name`."""
    return f"{name.removesuffix(_SUFFIX)}.{os.getpid()}"


def _is_served(name: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wire:
        wire.setblocking(False)
        try:
            wire.connect(name)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:  # EAGAIN: its queue is full
            return True
    return True


def _remove_stale(directory: Path) -> None:
    """Remove what killed processes left. A name that is being taken right now is newer."""
    try:
        names = [name for name in os.listdir(directory) if name.endswith(_SUFFIX)]
    except OSError:
        return
    for name in names:
        path = directory / name
        try:
            if time.time() - os.lstat(path).st_ctime > STALE_AFTER_S and not _is_served(str(path)):
                path.unlink(missing_ok=True)
        except FileNotFoundError:  # it was removed meanwhile
            continue
