"""Identity: whose directory this is. It is not trusted by its name: it can be copied, renamed or mounted elsewhere (R-SN-7)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import msgspec

from varlog.model.errors import StartError
from varlog.model.ids import ClusterID, NodeID
from varlog.runtime.disk import Disk

IDENTITY_NAME: Final = "identity"
FORMAT_VERSION: Final = 1


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Kept in every directory of a node, as JSON. `node_key` is random: two nodes that were given the same id differ in it."""

    format: int = FORMAT_VERSION
    cluster: ClusterID
    node: NodeID
    node_key: str
    cluster_key_fingerprint: str


def fingerprint(cluster: ClusterID, cluster_key: str) -> str:
    """What is kept of the cluster key: enough to recognise it, not enough to use it."""
    return hashlib.sha256(f"varlog cluster {cluster}\n{cluster_key}".encode()).hexdigest()[:32]


def encode_identity(identity: Identity) -> bytes:
    """The file's bytes, readable for people."""
    return msgspec.json.format(msgspec.json.encode(identity), indent=2) + b"\n"


def read_identity(disk: Disk, directory: Path) -> Identity | None:
    """The identity in a node's directory; None if it has none yet."""
    path = directory / IDENTITY_NAME
    if not disk.exists(path):
        return None
    try:
        identity = msgspec.json.decode(disk.read_file(path), type=Identity)
    except msgspec.DecodeError as error:
        raise StartError(
            f"{path} is damaged ({error}): copy it from another volume of the same node"
        ) from error
    if identity.format != FORMAT_VERSION:
        raise StartError(
            f"{path} has format {identity.format}, this is format {FORMAT_VERSION}: start a newer varlog on it"
        )
    return identity


def check_identity(
    identity: Identity, cluster: ClusterID, node: NodeID, cluster_key: str, directory: Path
) -> None:
    """Refuse a directory of another cluster or node, and the wrong cluster key."""
    if (identity.cluster, identity.node) != (cluster, node):
        raise StartError(
            f"{directory} belongs to node {identity.node} of cluster {identity.cluster}, not to node {node} of cluster {cluster}: "
            "it was copied or renamed; give the node its own volume, or put the directory back"
        )
    if identity.cluster_key_fingerprint != fingerprint(cluster, cluster_key):
        raise StartError(
            f"{directory} was made with another cluster key: start with the key of cluster {cluster}, or use an empty volume"
        )
