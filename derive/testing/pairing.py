"""Pairing: which actual document each expected document is compared with.

An expected document that has all properties of the key is compared with the document of that key. Those that leave some
out are compared, one after the other, with the actual documents that are left, in key order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from derive.document.key import compile_key, show_key
from derive.document.pointer import JSON, MISSING, compile_pointer
from derive.protocol.specs import CollectionSpec, Document


@dataclass(frozen=True, slots=True)
class Pair:
    """An expected document and the actual one that it is compared with.

    Attributes:
        name: the key, as JSON; or, where no key is known, the expected document's number in its step.
        expected: the expected document, or `MISSING`.
        actual: the actual document, or `MISSING`.
    """

    name: str
    expected: JSON
    actual: JSON


def pair_documents(
    spec: CollectionSpec, expected: Sequence[Document], actual: Mapping[bytes, Document]
) -> Iterator[Pair]:
    """Each document once, in key order; expected ones without a key that no document is left for come last.

    Args:
        spec: the collection.
        expected: documents of a verify step, as they are written.
        actual: documents of the collection by packed key; a key has one, so a second expected one finds none.
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
