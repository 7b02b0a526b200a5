"""Functions with effects: settings, sleep, locks.

DuckDB evaluates queries of the catalogs, and cannot have these effects. So a macro returns a marker with the function
and its arguments; the session executes the markers in the order of rows and columns, and replaces each with the
function's value.
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
"""Functions with effects, with the oids of their result types."""

_MARK = "\1["


@dataclass(frozen=True, slots=True)
class Effect:
    """A call with an effect.

    Attributes:
        function: name of the function.
        arguments: arguments of the call.
    """

    function: str
    arguments: tuple[Argument, ...]


class Effects(Protocol):
    """Executor of effects."""

    def begin(self) -> None:
        """Begin a statement: cancellation applies to this statement from now on."""

    def ending(self, stop: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `stop` if the statement in this block is cancelled or times out.

        Raises:
            SqlError: the statement was cancelled.
        """

    async def call(self, effect: Effect) -> Datum:
        """Execute an effect, and return the function's value.

        Raises:
            SqlError: the effect is invalid.
        """


def effect_macros() -> dict[str, str]:
    """Return DuckDB macros that return markers, for any number of arguments."""
    signatures = ("", "a", "a, b", "a, b, c")
    return {
        name: ", ".join(
            f"({names}) AS chr(1) || json_array('{name}'{', ' if names else ''}{names})" for names in signatures
        )
        for name in EFFECTS
    }


def effect_of(value: object) -> Effect | None:
    """Return the effect of a marker; None for another value."""
    if not isinstance(value, str) or not value.startswith(_MARK):
        return None
    name, *arguments = json.loads(value[1:])
    return Effect(name, tuple(arguments))
