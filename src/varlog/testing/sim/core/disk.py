"""SimDisk: one process's view of its host's Drive.

The process can crash, and the operation can fail, at any operation.
"""

from __future__ import annotations

import builtins
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from varlog.model.batch import Buffer
from varlog.testing.sim.core.drive import Drive, Folder, Inode
from varlog.testing.sim.core.loop import Process, ProcessCrashed


class SimDisk:
    """The Disk that a simulated process is handed.

    `crash_at` counts down with each changing operation; at zero the process crashes: before the operation, after it, or
    (a write of several buffers, a replacement) in its middle.
    """

    def __init__(self, drive: Drive, process: Process, rng: random.Random, crash: Callable[[], None]) -> None:
        self.drive = drive
        self.operations = 0
        self.crash_at: int | None = None
        self._process = process
        self._rng = rng
        self._crash = crash
        self._locks: dict[Path, SimLock] = drive.locks
        process.on_death(self._died)

    def _died(self) -> None:
        for path in [path for path, lock in self._locks.items() if lock.process is self._process]:
            del self._locks[path]

    def change(self, *steps: Callable[[], None]) -> None:
        """Do the steps of one operation, or crash before, between or after them."""
        self._process.check()
        self.operations += 1
        if self.crash_at is None or self.operations < self.crash_at:
            for step in steps:
                step()
            return
        for step in steps[: self._rng.randint(0, len(steps))]:
            step()
        self._crash()
        raise ProcessCrashed(self._process.name)

    def look(self) -> None:
        """Before an operation that only reads."""
        self._process.check()

    def chance(self, probability: float) -> bool:
        return self._rng.random() < probability

    def pick(self, count: int) -> int:
        """A number of 0 to `count`."""
        return self._rng.randint(0, count)

    # --- Disk ---------------------------------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False) -> SimFile:
        self.look()
        self.drive.check_open(path)
        if create:
            folder = self.drive.folder(path.parent)
            if path.name in folder.entries:
                raise FileExistsError(17, "File exists", str(path))
            self.drive.check_room(1, path)
            self.change(lambda: folder.link(path.name, Inode()))
        return SimFile(self, path, self.drive.file(path))

    def read_file(self, path: Path) -> bytes:
        self.look()
        self.drive.check_open(path)
        self.drive.check_read(path)
        return bytes(self.drive.file(path).content)

    def replace_file(self, path: Path, content: bytes) -> None:
        self.look()
        self.drive.check_open(path)
        folder = self.drive.folder(path.parent)
        fresh = f"{path.name}.new"
        inode = Inode()

        def write() -> None:
            folder.link(fresh, inode)
            self.drive.check_write(path)
            self.drive.check_room(len(content), path)
            self.drive.write(inode, 0, bytes(content))

        def place() -> None:
            self.drive.sync(inode, path)
            folder.rename(fresh, path.name)

        self.change(write, place, lambda: self.drive.sync_folder(folder, path.parent))

    def rename(self, old: Path, new: Path) -> None:
        self.look()
        source, target = self.drive.folder(old.parent), self.drive.folder(new.parent)
        if old.name not in source.entries:
            raise FileNotFoundError(2, "No such file or directory", str(old))
        if source is target:
            self.change(lambda: source.rename(old.name, new.name))
        else:
            node = source.entries[old.name]
            self.change(lambda: target.link(new.name, node), lambda: source.unlink(old.name))

    def remove(self, path: Path) -> None:
        self.look()
        self.drive.file(path)
        folder = self.drive.folder(path.parent)
        self.change(lambda: folder.unlink(path.name))

    def make_directory(self, path: Path) -> None:
        self.look()
        for made in [*reversed(path.parents), path]:
            node = self.drive.find(made)
            if node is None:
                parent = self.drive.folder(made.parent)
                self.change(lambda parent=parent, made=made: parent.link(made.name, Folder()), parent.sync)  # type: ignore[misc]
            elif not isinstance(node, Folder):
                raise FileExistsError(17, "File exists", str(made))

    def make_private(self, path: Path) -> int:
        self.look()
        return 0  # a simulated host has no other users

    def remove_tree(self, path: Path) -> None:
        self.look()
        folder, parent = self.drive.folder(path), self.drive.folder(path.parent)
        for name in sorted(folder.entries):
            if isinstance(folder.entries[name], Folder):
                self.remove_tree(path / name)
            else:
                self.change(lambda name=name: folder.unlink(name))  # type: ignore[misc]
        self.change(lambda: parent.unlink(path.name), parent.sync)

    def list(self, path: Path) -> builtins.list[str]:
        self.look()
        return sorted(self.drive.folder(path).entries)

    def exists(self, path: Path) -> bool:
        self.look()
        return self.drive.find(path) is not None

    def is_directory(self, path: Path) -> bool:
        self.look()
        return isinstance(self.drive.find(path), Folder)

    def is_writable(self, path: Path) -> bool:
        return self.is_directory(path)

    def free_bytes(self, path: Path) -> int:
        self.look()
        if self.drive.find(path) is None:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return self.drive.free_bytes()

    def sync_directory(self, path: Path) -> None:
        self.look()
        folder = self.drive.folder(path)
        self.change(lambda: self.drive.sync_folder(folder, path))

    def lock(self, path: Path) -> SimLock:
        self.look()
        held = self._locks.get(path)
        if held is not None and held.process.alive:
            raise BlockingIOError(11, "Resource temporarily unavailable", str(path))
        folder = self.drive.folder(path.parent)
        if path.name not in folder.entries:
            self.change(lambda: folder.link(path.name, Inode()))
        lock = self._locks[path] = SimLock(self._process, path, self._locks)
        return lock


class SimFile:
    """An open file of a simulated process."""

    def __init__(self, disk: SimDisk, path: Path, inode: Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._open = True

    def _look(self) -> None:
        self._disk.look()
        if not self._open:
            raise OSError(9, "Bad file descriptor", str(self.path))

    def write_at(self, buffers: Sequence[Buffer], offset: int) -> None:
        """A write that fails, or for which there is no room, leaves the buffers before it where they were put."""
        self._look()
        steps: list[Callable[[], None]] = []
        for buffer in buffers:
            data = bytes(buffer)
            steps.append(lambda at=offset, data=data: self._write(at, data))  # type: ignore[misc]
            offset += len(data)
        if self._disk.drive.fail_writes > 0:
            whole = self._disk.pick(len(steps))
            steps[whole:] = [lambda: self._disk.drive.check_write(self.path)]
        self._disk.change(*steps)

    def _write(self, at: int, data: bytes) -> None:
        self._disk.drive.check_room(at + len(data) - len(self._inode.content), self.path)
        self._disk.drive.write(self._inode, at, data)

    def sync(self) -> None:
        self._look()
        self._disk.change(lambda: self._disk.drive.sync(self._inode, self.path))

    def read_at(self, size: int, offset: int) -> bytes:
        self._look()
        self._disk.drive.check_read(self.path)
        return bytes(memoryview(self._inode.content)[offset : offset + size])

    def read_cached(self, size: int, offset: int) -> Buffer | None:
        self._look()
        # As often as not the page is not in memory: both ways of a read must be right.
        if self._disk.chance(0.4):
            return None
        data = bytearray(memoryview(self._inode.content)[offset : offset + size])
        return data if len(data) == size else None

    def reserve(self, size: int) -> None:
        self._look()
        if size > len(self._inode.content):
            self._disk.drive.check_room(size - len(self._inode.content), self.path)
            self._disk.change(lambda: self._inode.resize(size))

    def truncate(self, size: int) -> None:
        self._look()
        self._disk.change(lambda: self._inode.resize(size))

    def size(self) -> int:
        self._look()
        return len(self._inode.content)

    def is_linked(self) -> bool:
        self._look()
        return self._disk.drive.find(self.path) is self._inode

    def close(self) -> None:
        self._open = False


class SimLock:
    """A lock that goes with its process."""

    def __init__(self, process: Process, path: Path, locks: dict[Path, SimLock]) -> None:
        self.process = process
        self._path = path
        self._locks = locks

    def is_linked(self) -> bool:
        return True  # it is kept by path, and nothing removes lock files here

    def release(self) -> None:
        if self._locks.get(self._path) is self:
            del self._locks[self._path]
