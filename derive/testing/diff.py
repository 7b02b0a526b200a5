"""Differences between expected and actual documents, and their pairing.

An expected document with all properties of the key is paired with the actual document of that key. The other expected
documents are paired with the remaining actual documents, one after the other, in key order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from derive.document.key import compile_key, show_key
from derive.document.pointer import JSON, MISSING, compile_pointer, escape
from derive.protocol.specs import CollectionSpec, Document


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


@dataclass(frozen=True, slots=True)
class Pair:
    """An expected document and its actual document.

    Attributes:
        name: the key, as JSON; for an expected document without a key its number in the step.
        expected: the expected document, or `MISSING`.
        actual: the actual document, or `MISSING`.
    """

    name: str
    expected: JSON
    actual: JSON


def pair_documents(
    spec: CollectionSpec, expected: Sequence[Document], actual: Mapping[bytes, Document]
) -> Iterator[Pair]:
    """Yield a pair for each document, in key order; unpaired expected documents without a key come last.

    Args:
        spec: the collection.
        expected: documents of a verify step, as they are written.
        actual: documents of the collection by packed key. A second expected document of a key is paired with `MISSING`.
    """
    pack = compile_key(spec.key, spec.key_defaults)
    pointers = [compile_pointer(pointer) for pointer in spec.key]
    by_key: dict[bytes, list[JSON]] = {}
    keyless: list[tuple[int, Document]] = []
    for number, document in enumerate(expected, start=1):
        if any(get(document) is MISSING for get in pointers):
            keyless.append((number, document))
        else:
            by_key.setdefault(pack(document), []).append(document)
    in_order = iter(keyless)
    for key in sorted({*actual, *by_key}):
        first, *repeated = by_key.get(key) or [next(in_order, (0, MISSING))[1]]
        yield Pair(show_key(key), first, actual.get(key, MISSING))
        for document in repeated:
            yield Pair(show_key(key), document, MISSING)
    for number, document in in_order:
        yield Pair(f"document {number}", document, MISSING)
