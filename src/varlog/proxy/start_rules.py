"""PURE. Start: where a follower begins: a position, the oldest entry, the next one that comes, or so many before the end."""

from __future__ import annotations

from dataclasses import dataclass

from varlog.model.lsn import LSN_MAX

OLDEST, NEXT = "oldest", "next"
# As the OpenAPI document says it. A negative number counts from the end: -10 are the last ten.
PATTERN = r"^(oldest|next|-?[1-9][0-9]{0,18})$"


@dataclass(frozen=True, slots=True)
class Start:
    """`text` is what was asked for. A position that is trimmed stays what it is: whether to go on later is not for us to decide."""

    text: str = OLDEST

    def __post_init__(self) -> None:
        if self.text not in (OLDEST, NEXT) and not -LSN_MAX <= self._number() <= LSN_MAX:
            raise ValueError(f"a position is at most {LSN_MAX}, not {self.text}")

    @classmethod
    def behind(cls, position: int) -> Start:
        """Behind the last entry that was taken."""
        return cls(str(position + 1))

    def position(self, *, oldest: int, newest: int) -> int:
        """The first position, in a topic that has these now."""
        if self.text == OLDEST:
            return oldest
        if self.text == NEXT:
            return newest + 1
        number = self._number()
        return number if number > 0 else max(oldest, newest + 1 + number)

    def _number(self) -> int:
        try:
            number = int(self.text)
        except ValueError:
            number = 0
        if number == 0:
            raise ValueError(
                f"{self.text!r} is no place to begin: name a position, {OLDEST}, {NEXT}, or -10 for the last ten"
            )
        return number
