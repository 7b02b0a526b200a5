"""Differences between an expected and an actual document."""

from __future__ import annotations

from dataclasses import dataclass

from derive.document.pointer import MISSING, escape
from derive.protocol.specs import JSON


@dataclass(frozen=True, slots=True)
class Difference:
    """One location at which two documents differ.

    Attributes:
        pointer: JSON pointer.
        expected: the expected value there, or `MISSING`.
        actual: the actual value there, or `MISSING`.
    """

    pointer: str
    expected: JSON
    actual: JSON


def differences(expected: JSON, actual: JSON, *, strict: bool = False, pointer: str = "") -> list[Difference]:
    """Return the locations at which `actual` contradicts `expected`.

    Further properties and further trailing items of `actual` are differences only if `strict`. Numbers are equal if
    they differ by rounding only.

    >>> differences({"a": 1}, {"a": 2, "b": 3})
    [Difference(pointer='/a', expected=1, actual=2)]
    """
    if isinstance(expected, dict) and isinstance(actual, dict):
        names = sorted({*expected, *actual}) if strict else list(expected)
        pairs = [(escape(name), expected.get(name, MISSING), actual.get(name, MISSING)) for name in names]
    elif isinstance(expected, list) and isinstance(actual, list):
        length = max(len(expected), len(actual)) if strict else len(expected)
        pairs = [(str(index), _item(expected, index), _item(actual, index)) for index in range(length)]
    else:
        return [] if _equal(expected, actual) else [Difference(pointer, expected, actual)]
    return [
        difference
        for name, left, right in pairs
        for difference in differences(left, right, strict=strict, pointer=f"{pointer}/{name}")
    ]


def _item(values: list[JSON], index: int) -> JSON:
    return values[index] if index < len(values) else MISSING


def _equal(expected: JSON, actual: JSON) -> bool:
    if isinstance(expected, bool) or isinstance(actual, bool):
        return expected is actual
    if isinstance(expected, int) and isinstance(actual, int):
        return expected == actual
    if isinstance(expected, int | float) and isinstance(actual, int | float):
        return expected == actual or abs(expected - actual) < 2.22e-16 * max(abs(expected), abs(actual))
    return type(expected) is type(actual) and bool(expected == actual)
