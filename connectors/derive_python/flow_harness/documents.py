"""Documents of a frame: those that methods read, and those that they publish.

If one transform reads all documents of a frame, its models are made from the text in one call, which takes a fraction
of the time. Values of JSON are then parsed only if the state or random values need them.

Published documents are text: one JSON document after the other, or columns if all have the same fields.
`connectors.module_kit.published` reads both forms. Documents that are columns need not be compared again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from operator import itemgetter
from typing import Any, Protocol

import pydantic
from pydantic_core import from_json, to_json

_MOST_DOCUMENT_BYTES = 64 << 20
_VALUE_BYTES = 20
"""About the size of a value as JSON."""

_SAMPLE = 8
"""One result in this number is measured."""

_SCALARS = frozenset({str, int, float, bool, type(None)})


class FrameDocuments(Sequence[Any]):
    """The documents of a frame, parsed at the first access.

    Args:
        text: the documents as a JSON array.
        count: their number.

    Attributes:
        text: the JSON array.
    """

    def __init__(self, text: bytes | bytearray, count: int) -> None:
        self.text, self._count = text, count
        self._parsed: list[Any] | None = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: Any) -> Any:
        return self._values()[place]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values())

    def _values(self) -> list[Any]:
        if self._parsed is None:
            self._parsed = from_json(self.text, cache_strings="keys")
        return self._parsed


class Reader:
    """Makes the models of one transform's documents.

    Args:
        model: the type of the documents, of pydantic or of msgspec.

    Attributes:
        fields: names of the model's attributes by property; empty if the documents are no models.
    """

    def __init__(self, model: Any) -> None:
        self.fields: dict[str, str] = {}
        if hasattr(model, "__struct_fields__"):
            import msgspec

            self.fields = dict(zip(model.__struct_encode_fields__, model.__struct_fields__, strict=True))
            self.make: Callable[[Any], Any] = lambda document: msgspec.convert(document, model)
            self._decode = msgspec.json.Decoder(list[model]).decode
            return
        declared = getattr(model, "__pydantic_fields__", {})
        self.fields = {field.validation_alias or name: name for name, field in declared.items()}
        one: Any = pydantic.TypeAdapter(model).validator
        many: Any = pydantic.TypeAdapter(list[model]).validator
        self.make = lambda document: one.validate_python(document, by_alias=True, by_name=False)
        self._decode = lambda text: many.validate_json(text, by_alias=True, by_name=False)

    def decode(self, documents: FrameDocuments) -> list[Any] | None:
        """Return the models of all documents of a frame; None if one of them is no such model."""
        try:
            models: list[Any] = self._decode(documents.text)
        except ValueError:
            return None
        return models


class Answer(Protocol):
    """The results of methods, in order.

    Attributes:
        size: approximate size in bytes.
    """

    size: int

    def add(self, result: Sequence[Any]) -> bool:
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

    def __init__(self, results: Iterable[Sequence[Any]] = ()) -> None:
        self.size = 0
        self._texts: list[bytes] = []
        for result in results:
            self.add(result)

    def add(self, result: Sequence[Any]) -> bool:
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
    """Results whose documents have the same class and fields, with values that are scalars.

    The values are copied, because the author may change a document and publish it again.
    """

    def __init__(self) -> None:
        self.size = 0
        self._counts: list[int] = []
        self._rows: list[tuple[Any, ...]] = []
        self._class: type | None = None
        self._fields: Any = None
        self._names: tuple[str, ...] = ()
        self._kinds = _SCALARS
        self._row_of: Callable[[Any], Any] = tuple

    def add(self, result: Sequence[Any]) -> bool:
        """Add the documents of one result; return False if they have other fields, or values that are no scalars."""
        rows, before = self._rows, len(self._rows)
        kind, row_of, kinds = self._class, self._row_of, self._kinds
        if len(result) == 1 and type(result[0]) is kind:  # the usual case
            row = row_of(result[0])
            if row is None or not kinds.issuperset(map(type, row)):
                return False
            rows.append(row)
            self._counts.append(1)
            if not len(self._counts) % _SAMPLE:
                self._measure(before)
            return True
        for document in result:
            if type(document) is not kind:
                if not self._begin(document):
                    break
                kind, row_of, kinds = self._class, self._row_of, self._kinds
            row = row_of(document)
            if row is None or not kinds.issuperset(map(type, row)):
                break
            rows.append(row)
        else:
            self._counts.append(len(rows) - before)
            if not len(self._counts) % _SAMPLE:
                self._measure(before)
            return True
        del rows[before:]
        return False

    def _measure(self, begin: int) -> None:
        """Add the estimated size of a sample of results whose last one has the rows from `begin` on."""
        texts = sum([len(value) for row in self._rows[begin:] for value in row if type(value) is str])
        self.size += _SAMPLE * (_VALUE_BYTES * (len(self._rows) - begin) + texts)

    def _begin(self, document: Any) -> bool:
        """Take the class and the fields of the first document; return False if it is another, or has no fields."""
        kind = type(document)
        if self._class is not None:
            return False
        if kind is dict:
            self._fields = self._names = tuple(document)
            self._row_of = self._dict_row
        elif hasattr(kind, "__struct_fields__"):
            self._names = kind.__struct_encode_fields__
            self._row_of = _struct_functions()[0]
        elif hasattr(kind, "__flow_is_partial__"):
            self._fields = set(document.__pydantic_fields_set__)
            self._names = tuple(name for name in document.__dict__ if name in self._fields)
            self._row_of = self._model_rows()
            self._kinds = _SCALARS - {type(None)}
        self._class = kind
        return bool(self._names)

    def _dict_row(self, document: dict[str, Any]) -> tuple[Any, ...] | None:
        return tuple(document.values()) if tuple(document) == self._fields else None

    def _model_rows(self) -> Callable[[Any], tuple[Any, ...] | None]:
        """Return a function from models to the values of the fields; None for a model with other fields."""
        fields, names = self._fields, self._names
        get = itemgetter(*names) if len(names) > 1 else lambda values: (values[names[0]],)

        def row_of(document: Any) -> Any:
            if document.__pydantic_fields_set__ != fields or document.__pydantic_extra__:
                return None
            return get(document.__dict__)

        return row_of

    def text(self) -> bytes:
        """Return a line with the names and the number of documents of each result, and a line for each column."""
        names = self._properties() if self._rows else []
        head = to_json({"columns": names, "counts": self._counts})
        return b"\n".join([head, *(to_json(column) for column in zip(*self._rows, strict=True))])

    def _properties(self) -> list[str]:
        """Return the properties of the documents."""
        fields = getattr(self._class, "__pydantic_fields__", {})
        return [(fields[name].serialization_alias or name) if name in fields else name for name in self._names]

    def documents(self) -> list[list[Any]]:
        """Return all results."""
        names, rows = self._properties(), iter(self._rows)
        return [[dict(zip(names, row, strict=True)) for row in islice(rows, count)] for count in self._counts]
