"""ProxyConfig: what a proxy is told when it starts: where it listens, which log is behind it, and what it allows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from varlog.proxy.host_rules import AcceptedNames
from varlog.proxy.limits import ProxyLimits


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """`cluster`: where the metadata repositories listen; `data`, if it is given: a directory instead, which this process opens.
    `names`: the hosts that it answers for."""

    listen: str
    cluster: str
    data: Path | None = None
    limits: ProxyLimits = field(default_factory=ProxyLimits)
    names: AcceptedNames = field(default_factory=AcceptedNames)
