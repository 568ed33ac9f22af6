"""BusyTopic: a topic that another writer appends to all the time, and what is in it at the end."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import varlog
from varlog.testing.tcp_cluster import WAIT_S

OTHERS = b"others-"
PAUSE_S = 0.003  # between two appends: what is tested needs the processor, too


class BusyTopic:
    """Appends of its own run in a thread until it is left; then everything is read and counted."""

    def __init__(self, address: str, topic: str, streams: int) -> None:
        with varlog.admin(address, timeout_s=WAIT_S) as admin:
            admin.create_topic(topic, streams=streams)
        self.address = address
        self.topic = topic
        self.appended = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._append, name="others")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    @property
    def options(self) -> dict[str, str]:
        return {"address": self.address, "topic": self.topic}

    def rows(self) -> list[bytes]:
        """What the topic holds of everybody but the others, in its order."""
        with varlog.connect(self.address, self.topic, create=False, timeout_s=WAIT_S) as log:
            found = [entry.data for part in log.subscribe_lists(1, log.tail() + 1) for entry in part]
        return [data for data in found if not data.startswith(OTHERS)]

    def check(self, wanted: Counter[bytes]) -> None:
        """Every row occurs once, and everything of the others."""
        self.stop()
        with varlog.connect(self.address, self.topic, create=False, timeout_s=WAIT_S) as log:
            found = Counter(entry.data for part in log.subscribe_lists(1, log.tail() + 1) for entry in part)
        own = Counter({data: count for data, count in found.items() if not data.startswith(OTHERS)})
        assert _summary(own - wanted) == [], "rows that occur too often"
        assert _summary(wanted - own) == [], "rows that are missing"
        others = Counter({data: count for data, count in found.items() if data.startswith(OTHERS)})
        assert others == Counter(OTHERS + b"%d" % n for n in range(self.appended))
        assert self.appended > 0

    def _append(self) -> None:
        with varlog.connect(self.address, self.topic, create=False, timeout_s=60.0) as log:
            for number in itertools.count():
                log.append(OTHERS + b"%d" % number)
                self.appended += 1
                if self._stopped.wait(PAUSE_S):
                    return


@contextmanager
def busy_topic(address: str, topic: str, streams: int = 2) -> Iterator[BusyTopic]:
    """The topic is made now."""
    found = BusyTopic(address, topic, streams)
    found.start()
    try:
        yield found
    finally:
        found.stop()


def _summary(rows: Counter[bytes]) -> list[tuple[bytes, int]]:
    return [(data[:20], count) for data, count in rows.most_common(5)]
