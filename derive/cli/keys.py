"""Keys on the command line: a JSON array, or for a key of one part also its value, with or without quotes.

The array is the documented form. `'["ann"]'`, `'"ann"'` and `ann` are one key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from derive.document.pointer import JSON
    from derive.protocol.specs import CollectionSpec


def key_values(text: str, pointers: Sequence[str] = (), *, are_texts: bool = False) -> list[JSON]:
    """Return the values of a key.

    Args:
        text: the key: a JSON array, or one value; a text that is not JSON is a value, too.
        pointers: locations of the values; none if they are unknown.
        are_texts: whether all values are texts, so that `7` is a text.

    Raises:
        UsageError: the text is not a key.
    """
    from derive.document.exact import parse_exact
    from derive.errors import UsageError

    try:
        value = parse_exact(text.encode())
    except ValueError as exc:
        if len(pointers) > 1 or text[:1] in ("", "[", "{", '"'):
            of = f" with a value for each of [{', '.join(pointers)}]" if pointers else ""
            example = "'[\"ann\", 7]'" if len(pointers) > 1 else "'[\"ann\"]'"
            raise UsageError(
                f"--key is not JSON: {text}", hint=f"a key is a JSON array{of}, and texts have quotes: --key {example}"
            ) from exc
        value = text
    if isinstance(value, list):
        return value
    return [text if are_texts and not isinstance(value, str) else value]


def values_of_key(spec: CollectionSpec, text: str) -> list[JSON]:
    """Return the values of a key of a collection; in a key of one text, `7` is a text.

    Raises:
        UsageError: the text is not a key.
    """
    types = {frozenset(one.types) for one in spec.projections if one.pointer in spec.key}
    return key_values(text, spec.key, are_texts=types == {frozenset({"string"})})


def packed_keys(spec: CollectionSpec, keys: Sequence[str]) -> tuple[bytes, ...] | None:
    """Return the packed keys of --key; None for all keys.

    Raises:
        UsageError: a text is not a key of the collection.
    """
    from derive.contents.reads import packed_key

    return tuple(packed_key(spec, values_of_key(spec, key)) for key in keys) or None
