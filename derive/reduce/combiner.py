"""The combiner: it makes one document of those of one key, or as few as their annotations allow.

Reading, testing and the engine all use it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from derive.document.exact import dump_exact, parse_exact
from derive.document.key import show_key
from derive.document.pointer import JSON, MISSING
from derive.errors import ReductionError
from derive.reduce.reducer import NotAssociative
from derive.reduce.strategies import DocumentReducer, compile_schema

__all__ = ["Combiner", "NotAssociative", "key_failure"]


def key_failure(name: str, key: bytes, error: ReductionError) -> ReductionError:
    """Return an error that names the collection and the packed key whose documents cannot be reduced."""
    return ReductionError(f"documents of {show_key(key)} in '{name}' cannot be reduced: {error.message}")


@lru_cache(maxsize=256)
def _compiled(schema: bytes, name: str) -> DocumentReducer:
    # Small transactions are many, and would each take longer to compile it than to use it.
    return compile_schema(parse_exact(schema), name)


class Combiner:
    """Combines documents under one schema.

    Args:
        schema: self-contained JSON Schema with `reduce` annotations.
        name: name of the collection, for messages.

    Raises:
        SchemaError: its annotations are not valid.

    Attributes:
        takes_last: whether `full` always gives the last document, as it is.
        keeps_single: whether `full` always gives a single document back, as it is.
    """

    def __init__(self, schema: JSON, *, name: str = "") -> None:
        compiled = _compiled(dump_exact(schema), name)
        self._reduce = compiled.reduce
        self.takes_last = compiled.takes_last
        self.keeps_single = compiled.keeps_single

    def partial_step(self, left: JSON, right: JSON) -> JSON:
        """Combine two documents of which the first is not the beginning of its key's history.

        Raises:
            NotAssociative: the documents have to stay separate.
            ReductionError: a strategy does not fit the documents.
        """
        return self._reduce(left, right, False)

    def partial(self, documents: Iterable[JSON]) -> list[JSON]:
        """Combine documents from the left into one, or into several where two have to stay separate."""
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
        """Reduce one more document onto the value of the whole history before it, `MISSING` if there is none.

        Raises:
            ReductionError: a strategy does not fit the values.
        """
        return self._reduce(value, document, True)
