"""Functions that do something beside giving a value: setting a setting, sleeping, locking.

Queries about catalogs are answered by DuckDB, which does none of that. There, such a function gives a mark that says
what is to be done with which arguments; whoever answers does it, in the order of rows and columns, and gives what comes
of it in place of the mark.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from derive.algebra.types import Datum

Argument: TypeAlias = str | int | float | bool | None

_TEXT, _BOOLEAN, _VOID = 25, 16, 2278
_LOCKS = [f"pg_{kind}lock{shared}" for kind in ("advisory_", "advisory_xact_") for shared in ("", "_shared")]
EFFECTS: dict[str, int] = {
    "set_config": _TEXT,
    "missing_setting": _TEXT,
    "pg_cancel_backend": _BOOLEAN,
    "pg_notify": _VOID,
    "pg_terminate_backend": _BOOLEAN,
    "pg_sleep": _VOID,
    "pg_advisory_unlock": _BOOLEAN,
    "pg_advisory_unlock_all": _VOID,
    "pg_advisory_unlock_shared": _BOOLEAN,
    **dict.fromkeys(_LOCKS, _VOID),
    **{name.replace("pg_", "pg_try_"): _BOOLEAN for name in _LOCKS},
}
"""Such functions, with oids of the types of their values."""

_MARK = "\1["


@dataclass(frozen=True, slots=True)
class Effect:
    """Something to be done.

    Attributes:
        function: its name.
        arguments: of the call.
    """

    function: str
    arguments: tuple[Argument, ...]


class Effects(Protocol):
    """Does what functions do."""

    def begin(self) -> None:
        """A statement begins: what is cancelled from now on is this one."""

    def ending(self, stop: Callable[[], None]) -> AbstractContextManager[None]:
        """Have the statement that is at work in the block end by a call, where it is cancelled or takes too long.

        Raises:
            SqlError: it was.
        """

    async def call(self, effect: Effect) -> Datum:
        """Do something, and give the function's value.

        Raises:
            SqlError: it cannot be done.
        """


def effect_macros() -> dict[str, str]:
    """Macros of DuckDB that give marks, for any number of arguments."""
    signatures = ("", "a", "a, b", "a, b, c")
    return {
        name: ", ".join(
            f"({names}) AS chr(1) || json_array('{name}'{', ' if names else ''}{names})" for names in signatures
        )
        for name in EFFECTS
    }


def effect_of(value: object) -> Effect | None:
    """What a value says that is to be done; None if it is just a value."""
    if not isinstance(value, str) or not value.startswith(_MARK):
        return None
    name, *arguments = json.loads(value[1:])
    return Effect(name, tuple(arguments))
