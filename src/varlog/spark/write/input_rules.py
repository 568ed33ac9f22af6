"""PURE. InputColumns: which columns of a DataFrame a write uses or refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Searched in this order; otherwise the only column that is left is the payload.
PAYLOADS = ("data", "value")
# Columns of a DataFrame that was read from a log: it can be written as it is, and these are not content.
READ_COLUMNS = ("topic", "glsn", "llsn", "log_stream", "timestamp")

_WHOLE = ("tinyint", "smallint", "int", "bigint")
_NO_ORDER = ("array", "map", "struct", "variant", "interval", "void", "object")
_ACCEPTED = (
    "a write needs one binary or string column, named 'data' or 'value' or the only one, besides the columns that the "
    "options 'orderBy' and 'log_stream' name"
)
_MAKE_ONE = 'make one with df.selectExpr("to_json(struct(*)) AS data"), or with a cast: CAST(x AS STRING)'

Field = tuple[str, str]  # a column's name, and its type as Spark prints it


class InputError(ValueError):
    """Columns or rows that the log cannot store: the message names them and the remedy."""


@dataclass(frozen=True, slots=True)
class InputColumns:
    """Which column of the input is what; "": there is none. `key`: rows with equal values share a log stream."""

    data: str
    order_by: str = ""
    key: str = ""
    glsn: str = ""
    timestamp: str = ""


def input_columns(
    fields: Sequence[Field], *, order_by: str = "", log_stream: str = "", keep: bool = False
) -> InputColumns:
    """The use of each column of a DataFrame. Refuses one whose rows would be in the log only in part."""
    key = "" if log_stream.isdecimal() else log_stream
    named = {
        _named(fields, name, option) for option, name in (("orderBy", order_by), ("log_stream", key)) if name
    }
    data = _payload(fields, {field[0] for field in named})
    ordered, keyed = (_named(fields, name, "")[0] if name else "" for name in (order_by, key))
    _check_order(fields, ordered)
    _check_key(fields, keyed)
    if keep:
        return InputColumns(data, glsn=_glsn(fields), timestamp=_timestamp(fields))
    return InputColumns(data, ordered, keyed)


def _payload(fields: Sequence[Field], named: set[str]) -> str:
    columns = dict(fields)
    left = [name for name in columns if name not in named]
    own = [name for name in left if name not in READ_COLUMNS]
    data = next((name for name in PAYLOADS if name in columns), "")
    if not data:
        for choice in (own, left, list(columns)):
            data = data or (choice[0] if len(choice) == 1 else "")
    if not data:
        raise InputError(f"the columns are {_listed(fields)}: {_ACCEPTED}; {_MAKE_ONE}")
    others = [name for name in own if name != data]
    if others:
        raise InputError(
            f"column {data!r} would be written, and {_quoted(others)} would be lost: {_ACCEPTED}. Leave them out with "
            f"df.select({data!r}), or {_MAKE_ONE}"
        )
    if not _is_text(columns[data]) and columns[data] != "binary":
        raise InputError(
            f"column {data!r} is {columns[data]}, and the log stores binary or string: {_MAKE_ONE}"
        )
    return data


def _named(fields: Sequence[Field], name: str, option: str) -> Field:
    """Spark ignores case, unless two columns differ in nothing else."""
    exact = [field for field in fields if field[0] == name]
    found = exact or [field for field in fields if field[0].lower() == name.lower()]
    if len(found) != 1:
        kind = " (or the id of a log stream)" if option == "log_stream" else ""
        raise InputError(
            f"option '{option}' names {name!r}, which is none of the columns {_listed(fields)}{kind}"
        )
    return found[0]


def _check_order(fields: Sequence[Field], name: str) -> None:
    kind = dict(fields).get(name, "")
    if kind.startswith(_NO_ORDER):
        raise InputError(f"option 'orderBy' names {name!r}, which is {kind}: rows cannot be sorted by it")


def _check_key(fields: Sequence[Field], name: str) -> None:
    kind = dict(fields).get(name, "binary")
    if kind not in _WHOLE and kind != "binary" and not _is_text(kind):
        raise InputError(
            f"option 'log_stream' names {name!r}, which is {kind}: a whole number, string or binary is needed: cast it"
        )


def _glsn(fields: Sequence[Field]) -> str:
    if dict(fields).get("glsn") != "bigint":
        raise InputError(
            f"option 'positions=keep' needs a column 'glsn' of type bigint; the columns are {_listed(fields)}"
        )
    return "glsn"


def _timestamp(fields: Sequence[Field]) -> str:
    kind = dict(fields).get("timestamp", "")
    if kind not in ("", "timestamp"):
        raise InputError(f"option 'positions=keep': column 'timestamp' is {kind}, and must be timestamp")
    return "timestamp" if kind else ""


def _is_text(kind: str) -> bool:
    return kind.startswith(("string", "varchar", "char"))


def _listed(fields: Sequence[Field]) -> str:
    return "(" + ", ".join(f"{name} {kind}" for name, kind in fields) + ")"


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)
