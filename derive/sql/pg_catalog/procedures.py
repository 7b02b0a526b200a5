"""Input and output functions of types: the only functions that `pg_proc` lists."""

from __future__ import annotations

from collections.abc import Mapping

from derive.functions.types.pg_type import PG_TYPES, PgType

_FIRST_PROCEDURE = 6_000
_UNDERSCORED = frozenset(
    "numeric date time timestamp timestamptz interval json jsonb uuid inet cidr macaddr".split()  # noqa: SIM905
)
"""Types whose functions have an underscore before their suffix."""
_KNOWN = {"array_in": 750, "array_out": 751, "array_recv": 2400, "array_send": 2401}


def procedure_name(pg_type: PgType, suffix: str) -> str:
    """Return the name of a type's function.

    Args:
        pg_type: the type.
        suffix: `in`, `out`, `recv` or `send`.
    """
    if pg_type.element and pg_type.name not in {"int2vector", "oidvector"}:
        return f"array_{suffix}"
    return f"{pg_type.name}{'_' if pg_type.name in _UNDERSCORED else ''}{suffix}"


def _numbered() -> dict[str, int]:
    suffixes = ("in", "out", "recv", "send")
    names = {procedure_name(pg_type, suffix) for pg_type in PG_TYPES.values() for suffix in suffixes}
    others = (name for name in sorted(names) if name not in _KNOWN)
    return _KNOWN | {name: oid for oid, name in enumerate(others, start=_FIRST_PROCEDURE)}


PROCEDURES: Mapping[str, int] = _numbered()
"""Oids of functions by name."""
