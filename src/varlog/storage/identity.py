"""Identity: which node and cluster a directory belongs to (R-SN-7).

Its name is not trusted: a directory can be copied, renamed or mounted elsewhere.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import msgspec

from varlog.model.batch import crc32c
from varlog.model.errors import PreconditionFailed, StartupError
from varlog.model.ids import NO_UUID, ClusterID, ClusterUUID, NodeID, check_cluster_uuid
from varlog.runtime.disk import Disk

IDENTITY_NAME: Final = "identity"
# 1: without the cluster's UUID and without a checksum; taken over by the first repository that opens a session.
_FORMAT_VERSION: Final = 2


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Kept in every directory of a node, as JSON. `node_key` is random: two nodes that were given the same id differ in it.
    `cluster_uuid`: the one cluster that the node serves; NO_UUID until a repository has opened its first session. `crc32c`: of the
    other fields, as they are encoded with 0 in its place."""

    format: int = _FORMAT_VERSION
    cluster: ClusterID
    node: NodeID
    node_key: str
    cluster_key_fingerprint: str
    cluster_uuid: ClusterUUID = NO_UUID
    crc32c: int = 0


def fingerprint(cluster: ClusterID, cluster_key: str) -> str:
    """What is stored of the cluster key: enough to recognise it, not enough to use it."""
    return hashlib.sha256(f"varlog cluster {cluster}\n{cluster_key}".encode()).hexdigest()[:32]


def encode_identity(identity: Identity) -> bytes:
    """The file's bytes, readable for people."""
    signed = msgspec.structs.replace(identity, crc32c=_checksum(identity))
    return msgspec.json.format(msgspec.json.encode(signed), indent=2) + b"\n"


def _checksum(identity: Identity) -> int:
    return crc32c(msgspec.json.encode(msgspec.structs.replace(identity, crc32c=0)))


def read_identity(disk: Disk, directory: Path) -> Identity | None:
    """The identity in a node's directory; None if it has none yet."""
    path = directory / IDENTITY_NAME
    if not disk.exists(path):
        return None
    try:
        identity = msgspec.json.decode(disk.read_file(path), type=Identity)
        check_cluster_uuid(identity.cluster_uuid)
    except (msgspec.DecodeError, ValueError) as error:
        raise StartupError(
            f"{path} is damaged ({error}): copy it from another volume of the same node"
        ) from error
    if not 1 <= identity.format <= _FORMAT_VERSION:
        raise StartupError(
            f"{path} has format {identity.format}, this is format {_FORMAT_VERSION}: start a newer varlog on it"
        )
    if identity.format > 1 and identity.crc32c != _checksum(identity):
        raise StartupError(
            f"{path} is damaged (its checksum is wrong): copy it from another volume of the same node"
        )
    return identity


def check_identity(
    identity: Identity, cluster: ClusterID, node: NodeID, cluster_key: str, directory: Path
) -> None:
    """Refuse a directory of another cluster or node, and the wrong cluster key."""
    if (identity.cluster, identity.node) != (cluster, node):
        raise StartupError(
            f"{directory} belongs to node {identity.node} of cluster {identity.cluster}, not to node {node} of cluster {cluster}: "
            "it was copied or renamed; give the node its own volume, or put the directory back"
        )
    if identity.cluster_key_fingerprint != fingerprint(cluster, cluster_key):
        raise StartupError(
            f"{directory} was created with another cluster key: start with the key of cluster {cluster}, or use an empty volume"
        )


def check_cluster_uuid_of(node: NodeID, bound: ClusterUUID, asking: ClusterUUID) -> None:
    """Refuse a metadata repository of another cluster than the one this node is bound to. NO_UUID on either side: not known."""
    if bound and asking and bound != asking:
        raise PreconditionFailed(
            f"storage node {node} belongs to the cluster with UUID {bound}, and the metadata repository to {asking}: start the "
            f"repository on the store of {bound}; if that is lost, rebuild it from the nodes with `vmr recover`; a node for a new "
            "cluster needs empty volumes"
        )
