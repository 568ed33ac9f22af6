"""ArrowFiles, HadoopFiles: the files of an archive.

Hadoop in the driver of a job, pyarrow where there is only Python. Local paths and URIs. A path without a scheme is a local one,
for both.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from varlog.model.errors import PreconditionFailed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

# File systems whose rename is atomic, and refuses an existing target.
_RENAMING = ("hdfs", "viewfs")


def is_local(path: str) -> bool:
    return "://" not in path and not path.startswith("file:")


def absolute(path: str) -> str:
    """The absolute path."""
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    return os.path.abspath(path) if is_local(path) else path.rstrip("/")


class ArrowFiles:
    """Reads an archive where there is no JVM: the planning of a read, and the tasks of one."""

    def __init__(self, path: str) -> None:
        import pyarrow.fs as pafs

        self.path = absolute(path)
        self._files: pafs.FileSystem = pafs.LocalFileSystem()
        self._root: str = self.path
        try:
            if not is_local(self.path):
                self._files, self._root = pafs.FileSystem.from_uri(_known_to_arrow(self.path))
        except (ValueError, OSError, NotImplementedError) as error:
            raise PreconditionFailed(f"archive {self.path} cannot be opened by pyarrow: {error}") from error

    def names(self, directory: str) -> list[str]:
        import pyarrow.fs as pafs

        where = pafs.FileSelector(f"{self._root}/{directory}", allow_not_found=True)
        return [info.base_name for info in self._files.get_file_info(where)]

    def read(self, name: str) -> bytes:
        with self._files.open_input_stream(f"{self._root}/{name}", compression=None) as stream:
            content: bytes = stream.readall()
            return content

    def open(self, name: str) -> pa.NativeFile:
        """A file for random access."""
        return self._files.open_input_file(f"{self._root}/{name}")


def _known_to_arrow(uri: str) -> str:
    """Hadoop calls it s3a, pyarrow s3."""
    scheme, _, rest = uri.partition("://")
    return f"s3://{rest}" if scheme in ("s3a", "s3n") else uri


class HadoopFiles:
    """Reads and writes an archive in the driver of a job, wherever Spark's own settings reach."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = absolute(path)
        # py4j: Java objects, which have no Python types.
        jvm: Any = spark._jvm
        session: Any = spark._jsparkSession
        self._jvm = jvm
        self._conf = session.sessionState().newHadoopConf()
        root = jvm.org.apache.hadoop.fs.Path(self.uri(""))
        try:
            self._files: Any = root.getFileSystem(self._conf)
        except Exception as error:
            raise PreconditionFailed(f"archive {self.path} cannot be opened: {_cause(error)}") from error
        self.scheme = "file" if is_local(self.path) else str(self._files.getScheme())

    def uri(self, name: str) -> str:
        """As Spark's own readers and writers expect it."""
        whole = f"{self.path}/{name}" if name else self.path
        return f"file:{whole}" if is_local(self.path) else whole

    def names(self, directory: str) -> list[str]:
        return [str(found.getPath().getName()) for found in self._listed(directory)]

    def sizes(self, directory: str) -> dict[str, int]:
        """The bytes of each file in a directory."""
        return {
            str(found.getPath().getName()): int(found.getLen())
            for found in self._listed(directory)
            if found.isFile()
        }

    def _listed(self, directory: str) -> list[Any]:
        place = self._place(directory)
        if not self._files.exists(place):
            return []
        return list(self._files.listStatus(place))

    def read(self, name: str) -> bytes:
        stream = self._files.open(self._place(name))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def delete(self, directory: str) -> None:
        """Remove a directory with its content, if it exists."""
        self._files.delete(self._place(directory), True)

    def rename_new(self, directory: str, to: str) -> None:
        """Rename a complete directory; refused if the name is in use. Atomic where the file system supports it."""
        taken = self._files.exists(self._place(to))
        if taken or not self._files.rename(self._place(directory), self._place(to)):
            raise PreconditionFailed(f"{self.uri(to)} cannot be made: something of that name is there")
        if self.scheme == "file":
            _sync(Path(self.path))

    def write_new(self, name: str, content: bytes) -> bool:
        """Create a complete file or none; false if the name is in use. At most one of several concurrent writers succeeds."""
        try:
            self._write_new(name, content)
        except Exception:
            # Also a write that succeeded and whose answer was lost; file systems report an existing file differently.
            if name.rpartition("/")[2] not in self.names(name.rpartition("/")[0]):
                raise
            return self.read(name) == content
        return True

    def _write_new(self, name: str, content: bytes) -> None:
        if self.scheme == "file":
            _link_new(Path(self.path, name), content)
        elif self.scheme in _RENAMING:
            self._rename_new(name, content)
        else:
            # Object stores show a file when it is closed; those that can refuse to replace one do it then.
            self._create(name, content)

    def _rename_new(self, name: str, content: bytes) -> None:
        fresh = f"{name}.{uuid.uuid4().hex}.tmp"
        self._create(fresh, content)
        try:
            renames = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
                self._files.getUri(), self._conf
            )
            how = self._jvm.org.apache.hadoop.fs.Options.Rename.NONE
            options = self._jvm.java.lang.reflect.Array.newInstance(how.getClass(), 1)
            options[0] = how
            renames.rename(self._place(fresh), self._place(name), options)
        finally:
            with suppress(Exception):
                self._files.delete(self._place(fresh), False)

    def _create(self, name: str, content: bytes) -> None:
        stream = self._files.create(self._place(name), False)
        stream.write(content)
        stream.close()

    def sync(self, directory: str, names: Iterable[str]) -> None:
        """Sync the files of a local directory, before anything is committed or trimmed because of them; other file systems
        are durable themselves."""
        if self.scheme != "file":
            return
        for name in names:
            _sync(Path(self.path, directory, name))
        above = Path(self.path, directory)
        for place in (above, *above.parents[: len(Path(directory).parts)]):
            _sync(place)

    def _place(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.uri(name))


def _link_new(path: Path, content: bytes) -> None:
    """A hard link succeeds for one of several concurrent writers, and only to a complete and durable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with fresh.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)
    for place in (path.parent, path.parent.parent, path.parent.parent.parent):
        _sync(place)


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _cause(error: Exception) -> str:
    """Java's message without its stack."""
    java: Any = getattr(error, "java_exception", None)
    return str(error) if java is None else str(java.toString())
