"""Fold the documents of one key and tick, from the left."""

from __future__ import annotations

from derive.document.key import show_key
from derive.errors import ReductionError
from derive.protocol.specs import DerivationSpec, Document
from derive.reduce.combiner import Combiner, NotAssociative, key_failure
from derive.schema.validator import compile_validator


class KeyFold:
    """Folds documents of one key into one, or into as few as their annotations allow.

    Args:
        spec: the derivation.
    """

    def __init__(self, spec: DerivationSpec) -> None:
        collection = spec.collection
        self._name = collection.name
        self._step = Combiner(collection.write_schema, name=spec.name).partial_step
        self._validator = compile_validator(collection.write_schema, name=spec.name)
        self._positions = collection.write_positions

    def add(self, key: bytes, folded: list[Document], document: Document) -> None:
        """Fold a document into those of its key, possibly as a further document.

        Args:
            key: packed key.
            folded: folded documents so far; not empty.
            document: published document of this key.

        Raises:
            ReductionError: a strategy does not accept the documents.
            SchemaViolation: the folded document is invalid.
        """
        try:
            folded[-1] = self._step(folded[-1], document)
        except NotAssociative:
            folded.append(document)
        except ReductionError as exc:
            raise key_failure(self._name, key, exc) from exc
        if not self._validator.is_valid(folded[-1]):
            raise self._validator.violation(folded[-1], key=show_key(key), positions=self._positions)
