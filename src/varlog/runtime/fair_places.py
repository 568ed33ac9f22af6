"""FairPlaces: bounded waiting places that clients share.

Max-min fair: when every place is occupied, a client with fewer places than another gets the newest place of the client
that has the most. So one client can use what no other one needs, and cannot lock the others out.
"""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T")


class FairPlaces(dict[K, T], Generic[K, T]):
    """What waits, by its key. Callers make room first (`make_room`), then `put`. A client is a connection."""

    def __init__(self) -> None:
        super().__init__()
        self._client_of: dict[K, object] = {}
        # The keys of each client that waits for anything, oldest first.
        self._keys_of: dict[object, dict[K, None]] = {}

    def make_room(self, client: object, size_max: int) -> list[T] | None:
        """What has to leave so that `client` gets a place: usually nothing. None: there is no place for it."""
        if len(self) < size_max:
            return []
        if not self._keys_of:
            return None
        heaviest = max(self._keys_of.values(), key=len)
        if len(self._keys_of.get(client, ())) + 1 >= len(heaviest):
            return None
        return [self.pop(next(reversed(heaviest)))]

    def put(self, key: K, client: object, item: T) -> None:
        super().__setitem__(key, item)
        self._client_of[key] = client
        self._keys_of.setdefault(client, {})[key] = None

    @property
    def first(self) -> T:
        """What has waited longest."""
        return next(iter(self.values()))

    def pop_first(self) -> T:
        return self.pop(next(iter(self)))

    def __setitem__(self, key: K, item: T) -> None:
        raise TypeError("a place belongs to a client: put() says to which")

    def __delitem__(self, key: K) -> None:
        self.pop(key)

    def pop(self, key: K, *default: T | None) -> T:  # type: ignore[override]  # as dict.pop, whose overloads say the same
        if key in self:
            client = self._client_of.pop(key)
            keys = self._keys_of[client]
            del keys[key]
            if not keys:
                del self._keys_of[client]
        return super().pop(key, *default)

    def clear(self) -> None:
        super().clear()
        self._client_of.clear()
        self._keys_of.clear()
