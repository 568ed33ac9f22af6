"""What the first user of a wheel does: import, append, read, and an error.

`make release-check` runs it without any extra. It uses nothing but the wheel and the standard library.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from importlib import resources
from pathlib import Path

import varlog
import varlog.aio


def blocking(directory: Path) -> None:
    with varlog.open(directory, topic="orders") as log:
        at = log.append(b"first")
        assert log.read(at.glsn).data == b"first"
        log.append_batch([b"second", b"third"])
        assert [entry.data for entry in log.subscribe(1, end=log.tail() + 1)] == [
            b"first",
            b"second",
            b"third",
        ]
        try:
            log.read(varlog.GLSN(99))
        except varlog.NotWritten:
            return
    raise AssertionError("a position that nobody wrote was read")


async def asynchronous(directory: Path) -> None:
    async with varlog.aio.open(directory, "fast", ordering="sequenced") as log:
        at = await log.append(b"hello")
        assert (await log.read(at.glsn)).data == b"hello"


def main() -> None:
    assert (resources.files("varlog") / "py.typed").is_file(), "the wheel has no types for its users"
    with tempfile.TemporaryDirectory() as directory:
        blocking(Path(directory))
        asyncio.run(asynchronous(Path(directory)))
    print(
        f"varlog {varlog.__version__} from {Path(varlog.__file__).parent} on Python {sys.version.split()[0]}: works"
    )


if __name__ == "__main__":
    main()
