"""Published documents of a frame as text: one JSON document after the other, or columns if all have the same fields.

`connectors.module_kit.published` reads both forms. Documents that are columns need not be compared again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Protocol

from pydantic_core import to_json

_MOST_DOCUMENT_BYTES = 64 << 20
_VALUE_BYTES = 20
"""About the size of a value as JSON."""

_SCALARS = frozenset({str, int, float, bool, type(None)})


class Answer(Protocol):
    """The results of methods, in order.

    Attributes:
        size: approximate size in bytes.
    """

    size: int

    def add(self, result: Iterable[Any]) -> bool:
        """Add the documents of one result; return False, without a change, if they do not fit."""

    def text(self) -> bytes:
        """Return all results as the text of an answer."""

    def documents(self) -> list[list[Any]]:
        """Return all results."""


class DocumentAnswer:
    """Results with any documents.

    Args:
        results: results to begin with.
    """

    def __init__(self, results: Iterable[Iterable[Any]] = ()) -> None:
        self.size = 0
        self._texts: list[bytes] = []
        for result in results:
            self.add(result)

    def add(self, result: Iterable[Any]) -> bool:
        """Add the documents of one result."""
        text = b"[" + b",".join([_written(document) for document in result]) + b"]"
        self.size += len(text)
        self._texts.append(text)
        return True

    def text(self) -> bytes:
        """Return all results as a JSON array of arrays."""
        return b"[" + b",".join(self._texts) + b"]"

    def documents(self) -> list[list[Any]]:
        """Return nothing, because any document fits."""
        return []


def _written(document: Any) -> bytes:
    """Return a published document as JSON.

    Raises:
        TypeError: the value is no document.
        ValueError: the document is too long.
    """
    serializer = getattr(document, "__pydantic_serializer__", None)
    if serializer is not None:
        is_partial = getattr(type(document), "__flow_is_partial__", False)  # unlike a model of the author's
        text: bytes = serializer.to_json(document, by_alias=True, exclude_unset=is_partial)
    elif hasattr(document, "__struct_fields__"):
        text = _struct_functions()[1](document)
    elif isinstance(document, dict):
        text = to_json(document, by_alias=True)
    else:
        raise TypeError(f"the method published a value of type '{type(document).__name__}', which is no document")
    if len(text) > _MOST_DOCUMENT_BYTES:
        raise ValueError(f"the method published a document of {len(text)} bytes; {_MOST_DOCUMENT_BYTES} at most")
    return text


@cache
def _struct_functions() -> tuple[Callable[[Any], tuple[Any, ...]], Callable[[Any], bytes]]:
    """Return msgspec's functions that return the values of a struct, and its JSON."""
    import msgspec

    return msgspec.structs.astuple, msgspec.json.encode


class ColumnAnswer:
    """Results whose documents have the same class and fields, with values that are scalars."""

    def __init__(self) -> None:
        self.size = 0
        self._counts: list[int] = []
        self._rows: list[tuple[Any, ...]] = []
        self._results: list[list[Any]] = []
        self._class: type | None = None
        self._fields: Any = None
        self._names: tuple[str, ...] = ()

    def add(self, result: Iterable[Any]) -> bool:
        """Add the documents of one result; return False if they have other fields, or values that are no scalars."""
        documents = result if type(result) is list else list(result)
        if documents and hasattr(documents[0], "__struct_fields__"):
            return self._add_structs(documents)
        rows = []
        for document in documents:
            kind = type(document)
            if kind is dict:
                values = document
                fields: Any = tuple(document)
            else:
                fields = getattr(document, "__pydantic_fields_set__", None)
                if fields is None or document.__pydantic_extra__ or not hasattr(kind, "__flow_is_partial__"):
                    return False
                values = document.__dict__
            if self._class is None:
                if not fields:
                    return False
                self._class, self._fields = kind, fields if kind is dict else set(fields)
                self._names = tuple(fields) if kind is dict else tuple(name for name in values if name in fields)
            elif kind is not self._class or fields != self._fields:
                return False
            row = tuple([values[name] for name in self._names])
            if not _SCALARS.issuperset(map(type, row)) or (None in row and kind is not dict):
                return False
            rows.append(row)
        self._take(rows, documents)
        return True

    def _add_structs(self, documents: list[Any]) -> bool:
        kind = type(documents[0])
        if self._class is None:
            self._class, self._names = kind, kind.__struct_encode_fields__
        as_tuple, _ = _struct_functions()
        rows = []
        for document in documents:
            if type(document) is not self._class:
                return False
            row = as_tuple(document)
            if not row or not _SCALARS.issuperset(map(type, row)):
                return False
            rows.append(row)
        self._take(rows, documents)
        return True

    def _take(self, rows: list[tuple[Any, ...]], documents: list[Any]) -> None:
        self._rows += rows
        self._results.append(documents)
        self._counts.append(len(documents))
        self.size += _VALUE_BYTES * len(rows) + sum([len(value) for row in rows for value in row if type(value) is str])

    def text(self) -> bytes:
        """Return a line with the names and the number of documents of each result, and a line for each column."""
        names: list[str] = []
        if self._rows:
            fields = getattr(self._class, "__pydantic_fields__", {})
            names = [(fields[name].serialization_alias or name) if name in fields else name for name in self._names]
        head = to_json({"columns": names, "counts": self._counts})
        return b"\n".join([head, *(to_json(column) for column in zip(*self._rows, strict=True))])

    def documents(self) -> list[list[Any]]:
        """Return all results."""
        return self._results
