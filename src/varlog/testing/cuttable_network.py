"""CuttableNetwork: what a cluster talks over, whatever it is made of; one direction of a pair can be cut, and healed."""

from __future__ import annotations

from typing import Protocol

# Where all the clients of a cluster are.
CLIENTS = "clients"
# Where everybody else is: the test itself, and whoever reads back at the end.
OUTSIDE = "outside"


class CuttableNetwork(Protocol):
    """Places are named as the processes that are in them."""

    def cut(self, source: str, target: str) -> None:
        """What `source` sends to `target` does not arrive from now on; the other direction works."""

    def cut_both(self, one: str, other: str) -> None: ...

    def heal(self) -> None:
        """Everybody reaches everybody again."""


def server_places(nodes: int) -> list[str]:
    """Where the servers of a cluster of so many storage nodes are, in the order of its ports; the sequencer comes last."""
    return ["vmr", "vmc", *(f"vsn-{number}" for number in range(1, nodes + 1)), "vseq"]


def places(nodes: int) -> list[str]:
    """The places that a cluster of so many storage nodes and its clients need."""
    return [*server_places(nodes), CLIENTS]
