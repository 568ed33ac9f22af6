"""The arrows of the architecture: which imports are allowed, which files stay pure, where the system is used.

    model <- runtime <- storage | rpc <- reconfiguration <- storagenode | metarepo | sequencer | manager | client <- varlog
          <- recipes <- localcluster | verify | proxy | spark <- bench <- cli <- testing

The table of layers is `LAYERS` in tools.codemap, so that what the code map draws is what holds here. Imports
are read from the source with `ast`: those inside functions and under TYPE_CHECKING count as well.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

from tools.codemap import LAYERS, PACKAGE, PUBLIC
from varlog.testing.processes import PATIENCE_S

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"

# What lets the world in behind the simulator's back: modules, and calls (matched against the whole callee).
CLOCK, CHANCE, THREADS, NETWORK, DISK = "clock", "chance", "threads and processes", "network", "disk"
SYSTEM_MODULES = {
    "time": CLOCK,
    "random": CHANCE,
    "secrets": CHANCE,
    "uuid": CHANCE,
    "concurrent": THREADS,
    "multiprocessing": THREADS,
    "signal": THREADS,
    "subprocess": THREADS,
    "threading": THREADS,
    "select": NETWORK,
    "selectors": NETWORK,
    "socket": NETWORK,
    "fcntl": DISK,
    "mmap": DISK,
    "os": DISK,
    "shutil": DISK,
    "sqlite3": DISK,
    "tempfile": DISK,
}
SYSTEM_CALLS = {
    r"(datetime\.)?(datetime|date)\.(now|utcnow|today)": CLOCK,
    r"(np|numpy)\.random\..*": CHANCE,
    r"(asyncio|.*loop(\(\))?)\.(to_thread|run_in_executor|create_subprocess_\w+)": THREADS,
    r"(asyncio|.*loop(\(\))?)\.(open(_unix)?_connection|start(_unix)?_server)": NETWORK,
    r"(asyncio|.*loop(\(\))?)\.create(_unix)?_(connection|server)": NETWORK,
    r"open|(np|numpy)\.(memmap|fromfile)": DISK,
}
EVERY_INTERFACE = {CLOCK, CHANCE, THREADS, NETWORK, DISK}

# Where a system interface may be used, and why. All other code gets it as an argument, so that a simulator can replace it.
SYSTEM_ALLOWED = {
    "runtime/": (EVERY_INTERFACE, "this is where the system interfaces are"),
    "rpc/tcp.py": ({NETWORK}, "the real network behind the Transport protocol; the simulator has its own"),
    "rpc/local.py": (
        {NETWORK, DISK, CLOCK},
        "the same; the names of its sockets are files, and it asks the system which user we are",
    ),
    "metarepo/store/database.py": (
        {DISK, THREADS},
        "SQLite does its own I/O; over the simulator's disk it has an image that goes through Disk",
    ),
    "metarepo/store/snapshot.py": (
        {DISK},
        "reads a database that another process has open; never part of a simulation",
    ),
    "metarepo/store/sqlite.py": ({DISK}, "SQLite's errors and types; its I/O is in database.py"),
    "bench/": (EVERY_INTERFACE, "measures real processes; never part of a simulation"),
    "localcluster/": (EVERY_INTERFACE, "starts and supervises real processes; never part of a simulation"),
    "cli/": (EVERY_INTERFACE, "starts and supervises real processes; never part of a simulation"),
    "proxy/": (
        EVERY_INTERFACE,
        "a server process of its own, on the HTTP server's own interfaces; never part of a simulation",
    ),
    "spark/": (EVERY_INTERFACE, "runs in Spark's processes; never part of a simulation"),
    "testing/": (EVERY_INTERFACE, "builds the worlds that the rest is run in"),
}

# `import varlog` must stay fast and small: these are loaded on first use.
HEAVY = {
    "aetcd",
    "fastapi",
    "grpc",
    "prometheus_client",
    "pyarrow",
    "pydantic",
    "pyspark",
    "rich",
    "starlette",
    "typer",
    "uvicorn",
    "websockets",
}

# What another dependency loads by name.
LOADED_BY_NAME = {"httptools": "uvicorn's HTTP parser", "websockets": "uvicorn's WebSocket side"}

# Modules that are of no use without an extra: they import it at once, and are themselves imported only where they are used.
EXTRA_MODULES = ("metarepo/store/etcd.py", "proxy/", "spark/")


@dataclass(frozen=True)
class Import:
    """One imported module, by its absolute name."""

    module: str
    names: tuple[str, ...]
    line: int
    eager: bool  # at import time: not inside a function, not under TYPE_CHECKING

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]


@cache
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


@dataclass(frozen=True)
class Module:
    """One source file of a package that is laid out like varlog."""

    package: Path
    path: Path

    @property
    def name(self) -> str:
        return self.path.relative_to(self.package).as_posix()

    @property
    def unit(self) -> str:
        """The package just below varlog, or PUBLIC for the files beside them."""
        return self.name.split("/")[0] if "/" in self.name else PUBLIC

    @property
    def pure(self) -> bool:
        """By its name, or because its first line says so."""
        first_line = (ast.get_docstring(self.tree) or "").partition("\n")[0]
        return self.name.endswith(("_machine.py", "_rules.py")) or "PURE." in first_line

    @cached_property
    def tree(self) -> ast.Module:
        return _parsed(self.path.read_text(encoding="utf-8"))

    @cached_property
    def imports(self) -> list[Import]:
        return list(self._imports_below(self.tree, eager=True))

    def at(self, line: int) -> str:
        return f"{self.name}:{line}"

    def unit_of(self, module: str) -> str:
        below = module.split(".")[1:2]
        return below[0] if below and (self.package / below[0]).is_dir() else PUBLIC

    def _imports_below(self, node: ast.AST, *, eager: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, (), child.lineno, eager)
            elif isinstance(child, ast.ImportFrom):
                yield from self._from_import(child, eager)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                for part in child.body:
                    yield from self._imports_below(ast.Module([part], []), eager=False)
                for part in child.orelse:
                    yield from self._imports_below(ast.Module([part], []), eager=eager)
            else:
                later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from self._imports_below(child, eager=eager and not later)

    def _from_import(self, node: ast.ImportFrom, eager: bool) -> Iterator[Import]:
        module = node.module or ""
        if node.level:
            above = ["varlog", *self.path.relative_to(self.package).parts][: -node.level]
            module = ".".join([*above, *filter(None, [module])])
        for alias in node.names:
            # `from varlog import client` imports varlog.client, `from varlog import connect` the public names.
            inside = self.package.parent / module.replace(".", "/") / alias.name
            is_module = module.startswith("varlog") and (
                inside.is_dir() or inside.with_suffix(".py").is_file()
            )
            if is_module:
                yield Import(f"{module}.{alias.name}", (), node.lineno, eager)
            else:
                yield Import(module, (alias.name,), node.lineno, eager)


# Each rule yields what is wrong with one module.
Rule = Callable[[Module], Iterator[str]]


def layers_point_down(module: Module) -> Iterator[str]:
    """A unit imports itself and the layers below, so nothing but tests imports varlog.testing."""
    heights = {unit: height for height, layer in enumerate(LAYERS) for unit in layer}
    if module.unit not in heights:
        yield f"{module.name}: the package {module.unit} has no layer yet; give it one in LAYERS"
        return
    for imported in module.imports:
        unit = module.unit_of(imported.module)
        if imported.top != "varlog" or unit == module.unit:
            continue
        if unit not in heights or heights[unit] >= heights[module.unit]:
            yield f"{module.at(imported.line)}: {module.unit} may not import {unit} ({imported.module})"


# What a package must reach through another one, although its layer lies lower.
THROUGH = {
    "spark": (
        {"metarepo", "storage", "storagenode"},
        "the client, or varlog.embedded_reader for a directory",
    ),
}


def engines_stay_outside(module: Module) -> Iterator[str]:
    """An engine reads and writes a log through its public side, so that formats on disk can change behind it."""
    hidden, through = THROUGH.get(module.unit, (set(), ""))
    for imported in module.imports:
        if imported.top == "varlog" and module.unit_of(imported.module) in hidden:
            yield f"{module.at(imported.line)}: {module.unit} may not import {imported.module}: use {through}"


def private_names_stay_home(module: Module) -> Iterator[str]:
    for imported in module.imports:
        if imported.top == "varlog" and module.unit_of(imported.module) != module.unit:
            parts = [*imported.module.split("."), *imported.names]
            for name in parts:
                if name.startswith("_") and not name.endswith("__"):
                    yield f"{module.at(imported.line)}: {name} is private to {imported.module}"


def system_interfaces_are_where_they_belong(module: Module) -> Iterator[str]:
    allowed = {
        interface
        for at, (interfaces, _) in SYSTEM_ALLOWED.items()
        if module.name.startswith(at)
        for interface in interfaces
    }
    for line, what, interface in _system_uses(module):
        if interface not in allowed:
            yield f"{module.at(line)}: {what} is a system interface ({interface}); take it from runtime"


def _system_uses(module: Module) -> Iterator[tuple[int, str, str]]:
    for imported in module.imports:
        if imported.top in SYSTEM_MODULES:
            yield imported.line, imported.module, SYSTEM_MODULES[imported.top]
    own = {node.name for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef)}
    own |= {name for imported in module.imports for name in imported.names}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and (callee := ast.unparse(node.func)) not in own:
            for pattern, interface in SYSTEM_CALLS.items():
                if re.fullmatch(pattern, callee):
                    yield node.lineno, f"{callee}()", interface


def pure_files_import_only_model(module: Module) -> Iterator[str]:
    """And each other: where one noun needs more than one file."""
    if not module.pure:
        return
    for imported in module.imports:
        plain = imported.top in sys.stdlib_module_names and imported.top not in SYSTEM_MODULES
        pure = imported.module.startswith("varlog.model") or _is_pure(module.package, imported.module)
        if not plain and not pure:
            yield f"{module.at(imported.line)}: a pure file may not import {imported.module}"


def _is_pure(package: Path, name: str) -> bool:
    path = package.joinpath(*name.split(".")[1:]).with_suffix(".py")
    return path.is_file() and Module(package, path).pure


def pure_files_and_model_never_wait(module: Module) -> Iterator[str]:
    if not module.pure and module.unit != "model":
        return
    for imported in module.imports:
        if imported.top == "asyncio":
            yield f"{module.at(imported.line)}: {imported.module} has no place in pure code"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.AsyncFunctionDef):
            yield f"{module.at(node.lineno)}: {node.name} is async, and pure code never waits"


def dependencies_are_declared(module: Module) -> Iterator[str]:
    """What only the `test` extra installs is missing on a user's machine; what the other extras install may be."""
    runtime, extra, test = _declared_dependencies()
    whole = tuple(
        f"varlog.{name.removesuffix('.py').rstrip('/').replace('/', '.')}" for name in EXTRA_MODULES
    )
    of_extra = module.name.startswith(EXTRA_MODULES)
    for imported in module.imports:
        if imported.eager and imported.module.startswith(whole) and not of_extra:
            yield f"{module.at(imported.line)}: {imported.module}: import it where it is used"
        if imported.top in sys.stdlib_module_names or imported.top == "varlog" or imported.top in runtime:
            continue
        if imported.top in test and module.unit == "testing":
            continue
        if imported.top in extra and (not imported.eager or of_extra):
            continue
        how = "import it where it is used" if imported.top in extra else "it is no dependency of varlog"
        yield f"{module.at(imported.line)}: {imported.top}: {how}"


def _declared_dependencies() -> tuple[set[str], set[str], set[str]]:
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]

    def modules(requirements: list[str]) -> set[str]:
        return {re.split(r"[^\w-]", line)[0].replace("-", "_") for line in requirements} - {"varlog"}

    # `plot` is for a benchmark's pictures: nothing in the package draws.
    return (
        modules(project["dependencies"]),
        modules(extras["arrow"] + extras["etcd"] + extras["proxy"] + extras["spark"] + extras["java"]),
        modules(extras["test"]),
    )


def orderings_stay_apart(module: Module) -> Iterator[str]:
    """In the client the two orderings share leaves, and neither imports the other."""
    others = {"committed": "sequenced", "sequenced": "committed"}
    parts = module.path.relative_to(module.package).parts
    if len(parts) < 3 or parts[0] != "client" or parts[1] not in others:
        return
    other = f"varlog.client.{others[parts[1]]}"
    for imported in module.imports:
        if imported.module == other or imported.module.startswith(f"{other}."):
            yield f"{module.at(imported.line)}: {imported.module} is of the other ordering"


RULES: list[Rule] = [
    layers_point_down,
    orderings_stay_apart,
    engines_stay_outside,
    private_names_stay_home,
    system_interfaces_are_where_they_belong,
    pure_files_import_only_model,
    pure_files_and_model_never_wait,
    dependencies_are_declared,
]


def _modules(package: Path) -> list[Module]:
    return [Module(package, path) for path in sorted(package.rglob("*.py"))]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_module_keeps_the_rule(rule: Rule) -> None:
    broken = [complaint for module in _modules(PACKAGE) for complaint in rule(module)]
    assert not broken, "\n".join(["", *broken])


def test_every_dependency_is_used() -> None:
    used = {imported.top for module in _modules(PACKAGE) for imported in module.imports} | set(LOADED_BY_NAME)
    runtime, extra, _ = _declared_dependencies()
    assert (runtime | extra) - used == set()


def test_importing_the_public_names_loads_nothing_heavy() -> None:
    public = ["varlog", *(f"varlog.{path.stem}" for path in PACKAGE.glob("*.py") if path.stem != "__init__")]
    script = f"import sys, {', '.join(public)}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


# What the rules must catch: without these, a rule that never fires would pass forever.
PLANTED: list[tuple[Rule, str, str]] = [
    (layers_point_down, "model/x.py", "from varlog.runtime.environment import Clock"),
    (layers_point_down, "storage/x.py", "import varlog.rpc"),
    (layers_point_down, "client/x.py", "from varlog import storagenode"),
    (layers_point_down, "client/x.py", "from varlog import connect"),
    (layers_point_down, "client/x.py", "def f():\n    from varlog.manager import y"),
    (layers_point_down, "client/x.py", "if TYPE_CHECKING:\n    from varlog.metarepo import y"),
    (layers_point_down, "client/deep/x.py", "from ...cli import y"),
    (layers_point_down, "cli/x.py", "import varlog.testing.sim"),
    (layers_point_down, "newcomer/x.py", ""),
    (layers_point_down, "aio.py", "from varlog.cli import y"),
    (orderings_stay_apart, "client/sequenced/x.py", "from varlog.client.committed.reader import y"),
    (orderings_stay_apart, "client/committed/x.py", "import varlog.client.sequenced.units"),
    (engines_stay_outside, "spark/x.py", "from varlog.metarepo.store.snapshot import read_metadata"),
    (engines_stay_outside, "spark/read/x.py", "def f():\n    from varlog.storage import volume"),
    (engines_stay_outside, "spark/x.py", "if TYPE_CHECKING:\n    import varlog.storagenode.node"),
    (private_names_stay_home, "storage/x.py", "from varlog.model.batch import _HEADER"),
    (private_names_stay_home, "storage/x.py", "from varlog.model._trim_floor import HEADER"),
    (system_interfaces_are_where_they_belong, "storage/x.py", "import os.path"),
    (system_interfaces_are_where_they_belong, "client/x.py", "from random import Random"),
    (system_interfaces_are_where_they_belong, "rpc/tcp.py", "import time"),
    (system_interfaces_are_where_they_belong, "rpc/transport.py", "import socket"),
    (system_interfaces_are_where_they_belong, "manager/x.py", "datetime.now(UTC)"),
    (
        system_interfaces_are_where_they_belong,
        "manager/x.py",
        "asyncio.get_running_loop().run_in_executor(None, f)",
    ),
    (system_interfaces_are_where_they_belong, "manager/x.py", "await self._loop.create_connection(f)"),
    (system_interfaces_are_where_they_belong, "storage/x.py", "with open(path) as file: ..."),
    (pure_files_import_only_model, "metarepo/ordering/commit_rules.py", "import msgspec"),
    (pure_files_import_only_model, "metarepo/ordering/commit_rules.py", "import time"),
    (pure_files_import_only_model, "metarepo/commit_machine.py", "from varlog.metarepo.store import base"),
    (pure_files_import_only_model, "manager/x.py", '"""PURE. X."""\nimport msgspec'),
    (pure_files_and_model_never_wait, "metarepo/ordering/commit_rules.py", "import asyncio"),
    (pure_files_and_model_never_wait, "model/x.py", "async def f(): ..."),
    (dependencies_are_declared, "metarepo/x.py", "from varlog.metarepo.store.etcd import etcd_store"),
    (dependencies_are_declared, "metarepo/x.py", "import aetcd"),
    (dependencies_are_declared, "cli/x.py", "import psutil"),
    (dependencies_are_declared, "client/x.py", "import pyarrow"),
]

ALLOWED: list[tuple[Rule, str, str]] = [
    (layers_point_down, "cli/x.py", "import varlog\nfrom varlog.client import y"),
    (layers_point_down, "__init__.py", "from varlog.aio import y"),
    (layers_point_down, "client/deep/x.py", "from ..y import z"),
    (orderings_stay_apart, "client/sequenced/x.py", "from varlog.client.chunk import y"),
    (orderings_stay_apart, "client/log.py", "from varlog.client.committed.topic import y"),
    (engines_stay_outside, "spark/x.py", "from varlog.embedded_reader import DirectoryReader"),
    (engines_stay_outside, "cli/x.py", "from varlog.storage.dump import x"),
    (private_names_stay_home, "storage/x.py", "from varlog.storage.y import _z"),
    (private_names_stay_home, "storage/x.py", "from varlog import __version__"),
    (system_interfaces_are_where_they_belong, "runtime/x.py", "import os, time, random, threading, socket"),
    (system_interfaces_are_where_they_belong, "rpc/tcp.py", "import socket"),
    (system_interfaces_are_where_they_belong, "embedded.py", "def open(): ...\nopen()"),
    (
        system_interfaces_are_where_they_belong,
        "manager/x.py",
        "self.clock.now()\nself.disk.open(path)\nimport datetime",
    ),
    (
        pure_files_import_only_model,
        "metarepo/ordering/commit_rules.py",
        "import enum\nfrom varlog.model.lsn import GLSN",
    ),
    (dependencies_are_declared, "testing/x.py", "import psutil"),
    (dependencies_are_declared, "client/x.py", "def f():\n    import pyarrow"),
    (dependencies_are_declared, "client/x.py", "if TYPE_CHECKING:\n    import pyarrow"),
]


def _plant(tmp_path: Path, name: str, source: str) -> Module:
    package = tmp_path / "varlog"
    for unit in [unit for layer in LAYERS for unit in layer if unit != PUBLIC]:
        (package / unit).mkdir(parents=True)
    path = package / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return Module(package, path)


@pytest.mark.parametrize(("rule", "name", "source"), PLANTED)
def test_a_planted_violation_is_found(rule: Rule, name: str, source: str, tmp_path: Path) -> None:
    assert list(rule(_plant(tmp_path, name, source))) != []


@pytest.mark.parametrize(("rule", "name", "source"), ALLOWED)
def test_what_the_rule_allows_is_left_alone(rule: Rule, name: str, source: str, tmp_path: Path) -> None:
    assert list(rule(_plant(tmp_path, name, source))) == []
