"""The combiner: documents of one key into one, or into as few as their annotations allow.

There is one for reading, testing and the engine alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from derive.document.exact import dump_exact, parse_exact
from derive.document.pointer import JSON, MISSING
from derive.reduce.reducer import NotAssociative, Reduce
from derive.reduce.strategies import compile_schema

__all__ = ["Combiner", "NotAssociative"]


@lru_cache(maxsize=256)
def _compiled(schema: bytes, name: str) -> Reduce:
    # Small transactions are many, and would each take longer to compile it than to use it.
    return compile_schema(parse_exact(schema), name)


class Combiner:
    """Combines documents under one schema.

    Args:
        schema: self-contained JSON Schema with `reduce` annotations.
        name: of the collection, for messages.

    Raises:
        SchemaError: its annotations make no sense.
    """

    def __init__(self, schema: JSON, *, name: str = "") -> None:
        self._reduce = _compiled(dump_exact(schema), name)

    def partial_step(self, left: JSON, right: JSON) -> JSON:
        """Combine two documents of which the first is not the beginning of its key's history.

        Raises:
            NotAssociative: they have to stay two.
            ReductionError: a strategy does not fit them.
        """
        return self._reduce(left, right, False)

    def partial(self, documents: Iterable[JSON]) -> list[JSON]:
        """Combine documents from the left into one, or into several where two have to stay two."""
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
        """Reduce the whole history of a key, from the left; `MISSING` if it ends deleted."""
        value: JSON = MISSING
        for document in documents:
            value = self._reduce(value, document, True)
        return value

    def full_step(self, value: JSON, document: JSON) -> JSON:
        """Reduce one more document onto what the whole history before it reduces to, which is `MISSING` if it is none.

        Raises:
            ReductionError: a strategy does not fit them.
        """
        return self._reduce(value, document, True)
