"""PURE. AcceptedNames: the hosts that a proxy answers for; media types.

A page of another site can have its own name resolve to this machine (DNS rebinding): its browser then takes the proxy for that
site, and lets the page read and change everything. The name is in the Host of every request of a browser. So a proxy answers for
names that no other party can own: those of the loopback, addresses, and what its operator has listed (`--public-name`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

IpAddress = IPv4Address | IPv6Address
LOOPBACK_NAME = "localhost"
PORT_MAX = 65_535
REMEMBERED_MAX = 256


class Authority(NamedTuple):
    """The host of a Host header: a name in lower case or an address, and its port if there is one."""

    host: str
    port: int | None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


def parse_authority(text: str) -> Authority:
    """`name`, `name:port`, `address:port`, `[address]:port`. ValueError: it is none of these."""
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or not isinstance(_address(host), IPv6Address) or (rest and not rest.startswith(":")):
            raise ValueError(f"{text!r} is no host: name it as in a URL, without the scheme")
        return Authority(str(_address(host)), _port(rest[1:], text) if rest else None)
    host, colon, port = text.partition(":")
    name = host.lower().removesuffix(".")
    if not name or not all(
        character.isascii() and (character.isalnum() or character in "-._") for character in name
    ):
        raise ValueError(f"{text!r} is no host: name it as in a URL, without the scheme")
    return Authority(name, _port(port, text) if colon else None)


def _port(text: str, whole: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) > PORT_MAX:
        raise ValueError(f"{whole!r} is no host and port: name them as in a URL, without the scheme")
    return int(text)


def _address(host: str) -> IpAddress | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


class AcceptedNames:
    """What one proxy answers for. `public`: names or addresses, each with a port (then with this one only) or without."""

    def __init__(self, public: Iterable[str] = ()) -> None:
        self.public = tuple(dict.fromkeys(map(parse_authority, public)))
        self._public = frozenset(self.public)
        self._accepted: dict[
            tuple[str, str | None], bool
        ] = {}  # accepted before: clients use few hosts, often

    def accepts(self, host: str, local_address: str | None) -> bool:
        """Whether `host` is one of them. `local_address`: where the connection arrived. The port of an
        address does not matter: it may be forwarded."""
        if (host, local_address) in self._accepted:
            return True
        accepted = self._accepts(host, local_address)
        if accepted and len(self._accepted) < REMEMBERED_MAX:
            self._accepted[host, local_address] = True
        return accepted

    def _accepts(self, host: str, local_address: str | None) -> bool:
        try:
            asked = parse_authority(host)
        except ValueError:
            return False
        if (
            asked in self._public
            or Authority(asked.host, None) in self._public
            or asked.host == LOOPBACK_NAME
        ):
            return True
        address = _address(asked.host)
        if address is None:
            return False
        return address.is_loopback or (local_address is not None and address == _address(local_address))

    def __str__(self) -> str:
        return ", ".join([LOOPBACK_NAME, "the address that was connected to", *map(str, self.public)])


# --- media types (RFC 9110) ---------------------------------------------------------------------------------------------

JSON = "application/json"
NDJSON = "application/x-ndjson"
OCTETS = "application/octet-stream"
TEXT = "text/plain"
ARROW = "application/vnd.apache.arrow.stream"


def media_type(content_type: str) -> str:
    """The media type of a Content-Type, without its parameters. Without one a body is bytes (RFC 9110)."""
    return content_type.partition(";")[0].strip().lower() or OCTETS


def best(accept: str, offers: Sequence[str]) -> str | None:
    """The offer that the caller prefers; the first of equals; None if it accepts none. No Accept header accepts everything."""
    ranges = [_range(part) for part in accept.split(",") if part.strip()]
    if not ranges:
        return offers[0]
    weighted = [(_weight(offer, ranges), -at, offer) for at, offer in enumerate(offers)]
    weight, _, offer = max(weighted)
    return offer if weight > 0 else None


def _range(part: str) -> tuple[str, float]:
    """(media range, weight) of one part of an Accept. A weight that is not a number is ignored."""
    name, _, parameters = part.partition(";")
    weight = 1.0
    for parameter in parameters.split(";"):
        key, _, value = parameter.partition("=")
        if key.strip().lower() == "q":
            try:
                weight = float(value)
            except ValueError:
                weight = 1.0
    return name.strip().lower(), weight if 0.0 <= weight <= 1.0 else 1.0


def _weight(offer: str, ranges: Sequence[tuple[str, float]]) -> float:
    """The weight of the most specific range that matches the offer; 0 if none does."""
    family = f"{offer.partition('/')[0]}/*"
    for wanted in (offer, family, "*/*"):
        weights = [weight for name, weight in ranges if name == wanted]
        if weights:
            return max(weights)
    return 0.0
