"""The `reduce` keyword: the reduction of values at one location."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from derive.document.pointer import JSON
from derive.errors import SchemaError
from derive.suggest import suggest

STRATEGIES: Mapping[str, frozenset[str]] = {
    "append": frozenset(),
    "firstWriteWins": frozenset(),
    "jsonSchemaMerge": frozenset(),
    "lastWriteWins": frozenset({"delete", "associative"}),
    "maximize": frozenset({"key"}),
    "merge": frozenset({"key", "delete"}),
    "minimize": frozenset({"key"}),
    "set": frozenset({"key"}),
    "sum": frozenset(),
}
"""Options of each strategy, by its name."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """One `reduce` annotation.

    Attributes:
        strategy: one of `STRATEGIES`.
        key: JSON pointers, relative to the compared values; empty for the whole values.
        delete: true if a full reduction removes the location.
        associative: true if a partial reduction may combine unequal values.
    """

    strategy: str
    key: tuple[str, ...] = ()
    delete: bool = False
    associative: bool = True


def parse_annotation(value: JSON, where: str) -> Annotation:
    """Parse the value of a `reduce` keyword.

    Args:
        value: value of the keyword.
        where: name of the schema and location, for messages.

    Raises:
        SchemaError: the value is no annotation.
    """
    strategy = value.get("strategy") if isinstance(value, dict) else None
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        meant = suggest(strategy, STRATEGIES) if isinstance(strategy, str) else None
        known = ", ".join(sorted(STRATEGIES))
        hint = f"did you mean '{meant}'?" if meant else f"strategies: {known}"
        raise SchemaError(f"{where} is {value!r}, which is not supported", hint=hint)
    options = STRATEGIES[strategy]
    for option, given in value.items():
        if option == "strategy":
            continue
        if option not in options:
            known = f"its options: {', '.join(sorted(options))}" if options else "it has none"
            raise SchemaError(f"{where}: the strategy '{strategy}' has no option '{option}'", hint=known)
        if option == "key" and not _is_key(given):
            raise SchemaError(f"{where}: 'key' is {given!r}, and must be a list of JSON pointers")
        if option != "key" and not isinstance(given, bool):
            raise SchemaError(f"{where}: '{option}' is {given!r}, and must be true or false")
    return Annotation(strategy, tuple(value.get("key", ())), value.get("delete", False), value.get("associative", True))


def _is_key(value: JSON) -> bool:
    return isinstance(value, list) and all(isinstance(pointer, str) and pointer[:1] in ("", "/") for pointer in value)
