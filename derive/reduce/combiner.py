"""The combiner: reduces the documents of one key to one document, or to as few as the annotations allow.

Readers, catalog tests and the engine use the combiner.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from derive.document.exact import dump_exact, parse_exact
from derive.document.key import show_key
from derive.document.pointer import JSON, MISSING
from derive.errors import ReductionError
from derive.reduce.reduction import NotAssociative
from derive.reduce.strategies import DocumentReducer, compile_schema

__all__ = ["Combiner", "NotAssociative", "key_failure"]


def key_failure(name: str, key: bytes, error: ReductionError) -> ReductionError:
    """Return the error of documents that cannot be reduced, with the collection and the packed key."""
    return ReductionError(f"documents of {show_key(key)} in '{name}' cannot be reduced: {error.message}")


@lru_cache(maxsize=256)
def _compiled(schema: bytes, name: str) -> DocumentReducer:
    # The compiled reducer is cached: transactions are often small, and compilation takes longer than their reductions.
    return compile_schema(parse_exact(schema), name)


class Combiner:
    """Combines documents under one schema.

    Args:
        schema: self-contained JSON Schema with `reduce` annotations.
        name: name of the collection, for messages.

    Raises:
        SchemaError: the annotations are invalid.

    Attributes:
        takes_last: true if `full` always returns the last document unchanged.
        keeps_single: true if `full` always returns a single document unchanged.
    """

    def __init__(self, schema: JSON, *, name: str = "") -> None:
        compiled = _compiled(dump_exact(schema), name)
        self._reduce = compiled.reduce
        self.takes_last = compiled.takes_last
        self.keeps_single = compiled.keeps_single

    def partial_step(self, left: JSON, right: JSON) -> JSON:
        """Reduce two documents; the first document is not the first in the history of its key.

        Raises:
            NotAssociative: the documents must stay separate.
            ReductionError: a strategy does not accept the documents.
        """
        return self._reduce(left, right, False)

    def partial(self, documents: Iterable[JSON]) -> list[JSON]:
        """Reduce documents from the left into one document, or into several if some must stay separate."""
        folded: list[JSON] = []
        for document in documents:
            if folded:
                try:
                    folded[-1] = self.partial_step(folded[-1], document)
                    continue
                except NotAssociative:
                    pass
            folded.append(document)
        return folded

    def full(self, documents: Iterable[JSON]) -> JSON:
        """Reduce the whole history of a key from the left; return `MISSING` if the history ends with a deletion."""
        value: JSON = MISSING
        for document in documents:
            value = self._reduce(value, document, True)
        return value

    def full_step(self, value: JSON, document: JSON) -> JSON:
        """Reduce a document onto the value of the whole history before the document, or onto `MISSING`.

        Raises:
            ReductionError: a strategy does not accept the values.
        """
        return self._reduce(value, document, True)
