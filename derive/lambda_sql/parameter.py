"""Parameters: names of a document's fields in SQL, and the binding of their values.

A binding runs for every document, so the schema is evaluated beforehand. If every document has a property, and SQLite
accepts its type unchanged, `operator.itemgetter` returns the value without Python code.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from typing import Any, TypeAlias

from derive.document.clock import format_rfc3339
from derive.document.exact import dump_exact
from derive.document.pointer import JSON, MISSING, compile_pointer, parse_pointer
from derive.errors import Issue, suggest
from derive.lambda_sql.statements import Statement
from derive.position import Script
from derive.protocol.specs import Document, ProjectionSpec, TransformSpec

_CANONICAL = re.compile(r"[\w\s\-/]+")
_EXPLICIT = re.compile(r"p::\((.*)\)", re.DOTALL)
_LOOSE, _SPACE = re.compile(r"[\s\-]"), re.compile(r"\s")
# A match may begin inside a string and end after it, so another parameter may begin within the match.
_MENTIONED = re.compile(r"(?=[$@:#]((?:[\w$]|[^\x00-\x7f]|::)*(?:\([^\s)]*\))?))")


def parameter_of(field: str) -> str:
    """Return the parameter that names a field, with its `$`."""
    if _CANONICAL.fullmatch(field):
        return "$" + _LOOSE.sub("_", field).replace("/", "$")
    return "$p::(" + _SPACE.sub("_", field) + ")"


def find_projection(name: str, projections: Sequence[ProjectionSpec]) -> ProjectionSpec | None:
    """Return the projection that a parameter (without its `$`) names; None if there is none.

    An exact name has priority; otherwise `_` may stand for white space or a hyphen (only for white space in the
    explicit form).
    """
    explicit = _EXPLICIT.fullmatch(name)
    field = explicit[1] if explicit else name.replace("$", "/")
    names = _names_of(projections)
    return names.exact.get(field) or (names.explicit if explicit else names.loose).get(field)


@dataclass(frozen=True, slots=True)
class _Names:
    """Projections by parameter name.

    Attributes:
        of: the projections.
        exact: projections by field.
        loose: projections by field with `_` for white space and hyphens; the first of several.
        explicit: projections by field with `_` for white space alone; the first of several.
    """

    of: Sequence[ProjectionSpec]
    exact: Mapping[str, ProjectionSpec]
    loose: Mapping[str, ProjectionSpec]
    explicit: Mapping[str, ProjectionSpec]


_last: deque[_Names] = deque(maxlen=8)
"""Cache of the last names: a lambda has many parameters, and its source has many projections."""


def _names_of(projections: Sequence[ProjectionSpec]) -> _Names:
    for names in _last:
        if names.of is projections:
            return names
    backwards = projections[::-1]
    names = _Names(
        projections,
        {projection.field: projection for projection in backwards},
        {_LOOSE.sub("_", projection.field): projection for projection in backwards},
        {_SPACE.sub("_", projection.field): projection for projection in backwards},
    )
    if isinstance(projections, tuple):  # a tuple is immutable, so it can be cached
        _last.append(names)
    return names


def mentioned_projections(sql: str, projections: Sequence[ProjectionSpec]) -> list[ProjectionSpec]:
    """Return all projections that parameters of unprepared SQL name; parameters in comments and strings count, too."""
    names = dict.fromkeys(match[1] for match in _MENTIONED.finditer(sql))
    named = {name: find_projection(name, projections) for name in names}
    return list({projection.field: projection for projection in named.values() if projection is not None}.values())


_SHOWN_PARAMETERS = 12


def named_fields(
    script: Script, statement: Statement, transform: TransformSpec, projections: Sequence[ProjectionSpec]
) -> Mapping[str, ProjectionSpec] | list[Issue]:
    """Return the projection that each parameter names, or an issue for each parameter that names none."""
    named = {name: find_projection(name, projections) for name in statement.parameters}
    unknown = [name for name, projection in named.items() if projection is None]
    if unknown:
        return [_unknown(script, statement, name, transform, projections) for name in unknown]
    return {name: projection for name, projection in named.items() if projection is not None}


def _unknown(
    script: Script, statement: Statement, name: str, transform: TransformSpec, projections: Sequence[ProjectionSpec]
) -> Issue:
    known = sorted(parameter_of(projection.field) for projection in projections)
    guess = suggest(f"${name}", known)
    more = ", …" if len(known) > _SHOWN_PARAMETERS else ""
    written = re.compile(rf"[$:@?]{re.escape(name)}(?![\w$])").search(script.text, statement.begin)
    offset = written.start() if written else statement.begin
    return Issue(
        "E523",
        f"{script.text[offset] if written else '$'}{name} is not a field of '{transform.input.source}',"
        f" which transform '{transform.name}' reads",
        script.locate(offset, len(name) + 1),
        f"did you mean {guess}?" if guess else f"known: {', '.join(known[:_SHOWN_PARAMETERS])}{more}",
    )


_MISSING = re.compile(r"no such (?:column: (?P<column>\w+)|table: (?:main\.)?(?P<table>.+))")


def with_field_hint(issue: Issue, tables: Iterable[str], projections: Sequence[ProjectionSpec]) -> Issue:
    """Return an issue with a hint if a lambda reads a field of its document like a column, or its source like a table.

    Args:
        issue: an issue of the lambda.
        tables: names of the derivation's tables.
        projections: fields of the source.
    """
    _, _, fault = issue.message.partition(" is refused by SQLite: ")
    missing = _MISSING.fullmatch(fault)
    if missing is None:
        return issue
    known = sorted(parameter_of(projection.field) for projection in projections)
    if missing["column"]:
        guess = suggest(f"${missing['column']}", known)
        return replace(issue, hint=f"did you mean {guess}?") if guess else issue
    guess = suggest(missing["table"], tables)
    if guess:
        return replace(issue, hint=f"did you mean '{guess}'?")
    fields = [name for name in known if not name.startswith("$flow_")] or known
    example = f" such as {fields[0]}" if fields else ""
    return replace(issue, hint=f"a lambda gets one document, whose fields are parameters{example}")


Value: TypeAlias = Any
"""A value that SQLite accepts: None, bool, int, float, str or bytes."""

Getter: TypeAlias = Callable[[Document, int], Value]
"""A function from a document and its timestamp (microseconds) to the value of one parameter."""

PUBLISHED_AT = "/_meta/uuid"
"""Pointer of `flow_published_at`, whose value is derived from the document's timestamp."""

_I64 = 1 << 63
_INTEGER = re.compile(r"([+-]?\d+)(\.0+)?", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|Infinity)", re.ASCII)


@dataclass(frozen=True)
class Binding:
    """The values of a sequence of parameters.

    The functions are made at their first use: a check of a catalog binds no document.

    Attributes:
        projections: the projections that the parameters name, in this order.
    """

    projections: Sequence[ProjectionSpec]

    @cached_property
    def values(self) -> Callable[[Document, int], tuple[Value, ...]]:
        """Return a function from a document and its timestamp to the tuple of values.

        The function is compiled from source text with one expression per parameter, like named tuples in the standard
        library. A call per parameter and document would take longer than SQLite's own work.
        """
        names: dict[str, Any] = {"wide": _wide}
        terms = []
        for index, projection in enumerate(self.projections):
            name = _plain_property(projection)
            if name is None:
                names[f"get{index}"] = compile_getter(projection)
                terms.append(f"get{index}(document, published)")
                continue
            names[f"default{index}"] = projection.default[0] if projection.default else None
            is_required = projection.exists == "must"
            fetched = f"document[{name!r}]" if is_required else f"document.get({name!r}, default{index})"
            is_number = "fractional" in projection.types
            terms.append(f"value if type(value := {fetched}) is float else wide(value)" if is_number else fetched)
        body = "".join(f"({term}), " for term in terms)
        values: Callable[[Document, int], tuple[Value, ...]] = eval(f"lambda document, published: ({body})", names)
        return values

    @cached_property
    def _fetch(self) -> Callable[[Document], Any] | None:
        """Return a getter of the properties, if every document has all of them and SQLite accepts them unchanged."""
        names = [
            _plain_property(projection)
            for projection in self.projections
            if projection.exists == "must" and "fractional" not in projection.types
        ]
        if not names or len(names) < len(self.projections) or None in names:
            return None
        return itemgetter(*names)

    def feed(self, documents: Iterable[Document], published: Iterable[int]) -> Iterator[tuple[Value, ...]]:
        """Yield the values of each document; the document is taken from its iterator together with the values."""
        if self._fetch is None:
            return map(self.values, documents, published)
        fetched = map(self._fetch, documents)
        # An itemgetter of one name returns no tuple.
        return zip(fetched, strict=True) if len(self.projections) == 1 else fetched


@dataclass(frozen=True, slots=True)
class ColumnBinding:
    """The values of a sequence of parameters, from columns of fields.

    Attributes:
        terms: for each parameter, the index of its field, and a function that converts a value for SQLite; None if no
            conversion is needed. The index of `flow_published_at` is -1.
    """

    terms: tuple[tuple[int, Callable[[JSON], Value] | None], ...]

    def feed(
        self, fields: Sequence[Sequence[JSON]], published: Sequence[int]
    ) -> tuple[Iterator[tuple[Value, ...]], Iterator[object]]:
        """Return an iterator of the values of each document, and an iterator whose length hint is the rest's length.

        Args:
            fields: the values of each field.
            published: the documents' timestamps, microseconds.
        """
        iterators = [iter(self._column(fields, published, *term)) for term in self.terms]
        if iterators:
            return zip(*iterators, strict=False), iterators[0]  # zip takes from the first iterator first
        left = iter(range(len(published)))
        return (() for _ in left), left

    @staticmethod
    def _column(
        fields: Sequence[Sequence[JSON]],
        published: Sequence[int],
        number: int,
        convert: Callable[[JSON], Value] | None,
    ) -> Sequence[Value]:
        if number < 0:
            return list(map(format_rfc3339, published))
        if convert is None:
            return fields[number]
        if convert is _wide:
            return _numbers(fields[number])
        return [item if item is None else convert(item) for item in fields[number]]


def compile_columns(projections: Sequence[ProjectionSpec], fields: Sequence[str]) -> ColumnBinding:
    """Compile the binding of parameters that name these projections, in this order, from columns of these fields."""
    clock = (-1, None)
    return ColumnBinding(
        tuple(
            clock if item.pointer == PUBLISHED_AT else (fields.index(item.field), _column_conversion(item))
            for item in projections
        )
    )


def _column_conversion(projection: ProjectionSpec) -> Callable[[JSON], Value] | None:
    """Return the function that converts a scalar field's value for SQLite; None if no conversion is needed."""
    convert = _conversion(projection) if projection.types & {"string", "fractional"} else _plain
    is_structured = bool(projection.default) and isinstance(projection.default[0], dict | list)
    return None if convert is _plain and not is_structured else convert


def compile_getter(projection: ProjectionSpec) -> Getter:
    """Compile a function from a document and its timestamp to the SQLite value of a field."""
    if projection.pointer == PUBLISHED_AT:
        return lambda _, published: format_rfc3339(published)
    get = compile_pointer(projection.pointer)
    default = projection.default[0] if projection.default else None
    convert = _conversion(projection)

    def value(document: Document, _: int) -> Value:
        item = get(document)
        if item is MISSING:
            item = default
        return item if item is None else convert(item)

    return value


def _plain_property(projection: ProjectionSpec) -> str | None:
    """Return the name of a top-level property that SQLite accepts unchanged; None for other projections."""
    tokens = parse_pointer(projection.pointer)
    if len(tokens) != 1 or projection.types & {"object", "array"}:
        return None
    if "string" in projection.types and _conversion(projection) is not _plain:
        return None
    if projection.default and isinstance(projection.default[0], dict | list):
        return None
    return tokens[0]


def is_converted(projection: ProjectionSpec) -> bool:
    """Return whether a parameter has another value than the field: a number for text, or bytes for base64."""
    return _conversion(projection) not in (_plain, _wide)


def _conversion(projection: ProjectionSpec) -> Callable[[JSON], Value]:
    if projection.content_encoding == "base64":
        return _blob
    other = _wide if "fractional" in projection.types else _plain
    return {"integer": _integer, "number": _number}.get(projection.format or "", other)


def _plain(value: JSON) -> Value:
    return dump_exact(value).decode() if type(value) is dict or type(value) is list else value


def _wide(value: JSON) -> Value:
    """Convert a number that may have a fraction: an integer beyond 64 bits becomes a REAL, like the literal 1e19."""
    if type(value) is int and not -_I64 <= value < _I64:
        with suppress(OverflowError):
            return float(value) if float(value) == value else value
    return _plain(value)


def _numbers(values: Sequence[JSON]) -> Sequence[Value]:
    """Convert a column of numbers like `_wide`; integers beyond 64 bits are rare."""
    kinds = set(map(type, values))
    if kinds.isdisjoint({dict, list}) and (
        int not in kinds or all(-_I64 <= value < _I64 for value in values if type(value) is int)
    ):
        return values
    return list(map(_wide, values))


def _integer(value: JSON) -> Value:
    written = _INTEGER.fullmatch(value) if type(value) is str else None
    if written is None:
        return _plain(value)
    number = int(written[1]) if len(written[1]) <= 20 else _I64
    return number if -_I64 <= number < _I64 else value


def _number(value: JSON) -> Value:
    # NaN stays text: SQLite would store NULL.
    return float(value) if type(value) is str and _NUMBER.fullmatch(value) else _wide(value)


def _blob(value: JSON) -> Value:
    if type(value) is not str:
        return _plain(value)
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return value
