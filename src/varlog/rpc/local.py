"""Local sockets: whoever listens at a loopback address is reached by a Unix socket, too, past the whole of TCP. [A3 R3]

Two processes of one machine pay for TCP what two machines need: segments, acknowledgements, timers. A Unix socket carries the same
frames for about half of the processor time. Its name follows from the address, and lies in Linux's abstract namespace: it needs no
file, ends with its process, and belongs to a network namespace, as ports do. Elsewhere there is TCP alone.

Anybody on the machine may take such a name before us, as he may take a port. So a server does not start where the name is taken,
and a client believes a name only if it belongs to its own user or to root; else it asks the port.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from ipaddress import ip_address
from typing import Final

from varlog.model.limits import MIB

# The kernel lets 208 KiB be under way by default: a batch of a MiB would take five turns of both sides.
BUFFER_BYTES: Final = 2 * MIB

_LINUX: Final = sys.platform == "linux"
_EVERYWHERE: Final = ("0.0.0.0", "::", "")
_CREDENTIALS: Final = struct.Struct("3i")  # process, user, group


def name_of(host: str, port: int) -> str | None:
    """The name of whoever listens at this address, if it is one of this machine alone. Listening everywhere is listening here."""
    if not _LINUX:
        return None
    if host == "localhost" or host in _EVERYWHERE:
        host = "127.0.0.1"
    try:
        here = ip_address(host).is_loopback
    except ValueError:  # a name of some host
        return None
    return f"\0varlog/{host}:{port}" if here else None


def listen(name: str) -> socket.socket:
    """A socket bound to `name`. OSError: somebody has it."""
    wire = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        wire.bind(name)
        wire.setblocking(False)
    except OSError:
        wire.close()
        raise
    return wire


def connect(name: str) -> socket.socket | None:
    """A socket that is connected to `name`; None if nobody has it, or nobody to be believed, or nobody takes it at once."""
    wire = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        wire.setblocking(False)
        wire.connect(name)
        if credentials_of(wire)[1] in (os.geteuid(), 0):
            return wire
    except OSError:
        pass
    wire.close()
    return None


def credentials_of(wire: socket.socket) -> tuple[int, int, int]:
    """Process, user and group of the other side, as the kernel noted them when it connected or began to listen."""
    found: tuple[int, int, int] = _CREDENTIALS.unpack(
        wire.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return found
