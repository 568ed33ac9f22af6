"""The manifest of an archive: one JSON file per commit, numbered without gaps.

Only what it names is in the archive.

    PATH/_varlog/<topic>/<number, 20 digits>.json                                      a commit: taken once, never changed
    PATH/topic=<topic>/glsn_range=<begin>-<end>-<run>/part-*.parquet                   its entries, sorted by position

A directory that no commit names is what is left of an attempt that died, or was too late.
"""

from __future__ import annotations

import re
from typing import Protocol

import msgspec

from varlog.model.errors import PreconditionFailed
from varlog.spark.archive.archive_rules import FORMAT_VERSION, HOLES_VERSION, ArchiveCommit, Contents

_NUMBER = re.compile(r"(\d{20})\.json")


class FileReader(Protocol):
    """Files below an archive's path, by names with slashes."""

    def names(self, directory: str) -> list[str]:
        """The content of a directory; empty if it does not exist."""
        ...

    def read(self, name: str) -> bytes: ...


def manifest_of(topic: str) -> str:
    return f"_varlog/{topic}"


def commit_name(topic: str, number: int) -> str:
    return f"{manifest_of(topic)}/{number:020d}.json"


def data_of(topic: str) -> str:
    return f"topic={topic}"


def encode_archive_commit(commit: ArchiveCommit) -> bytes:
    """Readable JSON: one field per line. Version 1 cannot express positions without a row."""
    fields = msgspec.to_builtins(commit)
    if commit.version == FORMAT_VERSION:
        for file in fields["files"]:
            del file["missing"]
    return msgspec.json.format(msgspec.json.encode(fields), indent=2) + b"\n"


def decode_commit(content: bytes, place: str) -> ArchiveCommit:
    try:
        version = msgspec.json.decode(content, type=dict[str, msgspec.Raw]).get("version")
        if version is None or msgspec.json.decode(version, type=int) not in (FORMAT_VERSION, HOLES_VERSION):
            found = "no version" if version is None else f"version {bytes(version).decode()}"
            raise PreconditionFailed(
                f"{place} has {found}, and this varlog reads versions {FORMAT_VERSION} and {HOLES_VERSION}: use a newer one"
            )
        return msgspec.json.decode(content, type=ArchiveCommit)
    except msgspec.MsgspecError as error:
        raise PreconditionFailed(f"{place} is no manifest of an archive: {error}") from error


def read_contents(files: FileReader, topic: str) -> Contents:
    """All commits of a topic's archive."""
    return more_contents(files, topic, Contents())


def more_contents(files: FileReader, topic: str, known: Contents) -> Contents:
    """Known commits, and those since: commits never change, so they are read once."""
    found = [match for name in files.names(manifest_of(topic)) if (match := _NUMBER.fullmatch(name))]
    numbers = sorted(int(match[1]) for match in found)
    for expected, number in enumerate(numbers, 1):
        if number != expected:
            raise PreconditionFailed(f"{commit_name(topic, expected)} is missing, and later ones exist")
    places = [commit_name(topic, number) for number in numbers[len(known.commits) :]]
    return Contents((*known.commits, *(decode_commit(files.read(place), place) for place in places)))


def topics_in(files: FileReader) -> list[str]:
    """The topics that are archived here."""
    return sorted(name for name in files.names("_varlog") if files.names(manifest_of(name)))
