"""Pair each expected document with an actual document.

An expected document with all properties of the key is paired with the actual document of that key. The other expected
documents are paired with the remaining actual documents, one after the other, in key order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from derive.document.key import compile_key, show_key
from derive.document.pointer import JSON, MISSING, compile_pointer
from derive.protocol.specs import CollectionSpec, Document


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
