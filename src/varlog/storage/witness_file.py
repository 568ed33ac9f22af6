"""The `witness` file of a storage node: the newest term and projections seen.

As JSON, with a checksum, in the node's directory on every volume; replaced as a whole, and only when something in it changes: no
append ever waits for it. A copy that is damaged or cannot be written is logged, and the others count.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from varlog.model.batch import crc32c
from varlog.model.epoch import Epoch
from varlog.model.ids import TopicID
from varlog.model.projection import Proposal, with_present_keys
from varlog.runtime.disk import Disk
from varlog.runtime.logging import get_logger, logfmt
from varlog.storage.metadata_files import scrub_file

WITNESS_NAME: Final = "witness"
# Formats 1 and 2 had other keys: see with_present_keys.
_FORMAT_VERSION: Final = 3

_log = get_logger("storage")


class Witness(msgspec.Struct, frozen=True, omit_defaults=True):
    """`nonce`: which opening of the repository's store had the term (0: not known). `epochs`: of sequenced topics. `proposed`: the
    newest projection of each that was about to take effect. A field may be added, with a default."""

    term: int = 0
    nonce: int = 0
    epochs: tuple[tuple[TopicID, Epoch], ...] = ()
    proposed: tuple[Proposal, ...] = ()

    def keeping(self, proposal: Proposal) -> Witness:
        """A copy with this proposal in place of an earlier one for its topic."""
        others = [found for found in self.proposed if found.projection.topic != proposal.projection.topic]
        return msgspec.structs.replace(self, proposed=(*others, proposal))


class _Content(msgspec.Struct, frozen=True):
    format: int
    crc32c: int
    witness: msgspec.Raw


class _Format(msgspec.Struct, frozen=True):
    format: int


def encode_witness(witness: Witness) -> bytes:
    body = msgspec.json.encode(witness)
    return msgspec.json.encode(_Content(_FORMAT_VERSION, crc32c(body), msgspec.Raw(body))) + b"\n"


def decode_witness(content: bytes) -> Witness:
    """ValueError: damaged, or of a newer version."""
    if not 1 <= (version := msgspec.json.decode(content, type=_Format).format) <= _FORMAT_VERSION:
        raise ValueError(f"format {version}, this is format {_FORMAT_VERSION}")
    found = msgspec.json.decode(content, type=_Content)
    if crc32c(bytes(found.witness)) != found.crc32c:
        raise ValueError("the checksum does not match")
    if version < _FORMAT_VERSION:
        return msgspec.convert(with_present_keys(msgspec.json.decode(found.witness)), type=Witness)
    return msgspec.json.decode(found.witness, type=Witness)


class WitnessFile:
    """What the node remembers, and where. `keep` may run in any worker, one at a time."""

    def __init__(self, disk: Disk, directories: Sequence[Path]) -> None:
        self._disk = disk
        self._paths = [directory / WITNESS_NAME for directory in directories]

    def read(self) -> Witness:
        """The newest copy; an empty one if there is none."""
        found = [Witness()]
        for path in self._paths:
            try:
                if self._disk.exists(path):
                    found.append(decode_witness(self._disk.read_file(path)))
            except (OSError, ValueError) as error:
                _log.warning(logfmt("the witness file cannot be read", path=path, why=error))
        newest = max(found, key=lambda one: one.term)
        epochs: dict[TopicID, Epoch] = {}
        for topic, epoch in (pair for one in found for pair in one.epochs):
            epochs[topic] = max(epoch, epochs.get(topic, epoch))
        read = Witness(newest.term, newest.nonce, tuple(epochs.items()))
        for proposal in sorted(
            (proposal for one in found for proposal in one.proposed),
            key=lambda one: (one.term, one.serial),
        ):
            read = read.keeping(proposal)
        return read

    def scrub_metadata(self, witness: Witness) -> str:
        """Rewrite the copies that are not `witness`, which was written last; returns which, or ''."""
        content = encode_witness(witness)
        return "; ".join(filter(None, (scrub_file(self._disk, path, content) for path in self._paths)))

    def keep(self, witness: Witness) -> bool:
        """Write it to every volume that accepts it; False if none does. A node whose disks are all full or broken continues with
        what is in memory, and logs it: it still serves reads, and applies the trims that free space."""
        kept = False
        for path in self._paths:
            try:
                self._disk.replace_file(path, encode_witness(witness))
                kept = True
            except OSError as error:
                _log.warning(logfmt("the witness file cannot be written", path=path, why=error))
        return kept
