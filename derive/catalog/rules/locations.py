"""Rules for locations: the targets of keys, logical partitions, shuffle keys and projections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from derive.catalog.definitions import CollectionDef, Report
from derive.catalog.language.structure import collisions, is_field, is_pointer, is_token
from derive.catalog.language.yaml import Located
from derive.catalog.schemas import ExaminedSchema
from derive.document.pointer import parse_pointer
from derive.errors import suggest, suggest_misspelt
from derive.schema.projection import Declared, project
from derive.schema.shape import Shape, locate

SCALARS = ("boolean", "integer", "string")
"""Permitted types of a key component, apart from null."""


def check_pointer(at: Located, subject: str, report: Report) -> bool:
    """Return true if a value is a JSON pointer; add an issue otherwise."""
    pointer = at.value
    if isinstance(pointer, str) and is_pointer(pointer):
        return True
    hint = f"did you mean '/{pointer}'?" if isinstance(pointer, str) and is_pointer(f"/{pointer}") else None
    report.add("E302", f"{subject} must be a JSON pointer, but is {pointer!r}", at, hint)
    return False


def check_known(at: Located, shape: Shape, subject: str, report: Report, schema: str = "the schema") -> Shape | None:
    """Return the shape at a pointer.

    Return None, and add an issue, if the location cannot exist, or if the schema does not mention it.
    """
    located, exists = locate(shape, parse_pointer(at.value))
    if exists not in ("cannot", "implicit"):
        return located
    fault = "cannot exist" if exists == "cannot" else "is not mentioned"
    hint = _similar(at, shape, suggest_misspelt) or _beside(at, shape) or _similar(at, shape)
    report.add("E303", f"{subject} '{at.value}' {fault} in {schema}", at, hint)
    return None


_MOST_BESIDE = 8
"""Most locations that a hint lists."""


def _beside(at: Located, shape: Shape) -> str | None:
    """Return a hint that lists the locations of a schema beside a pointer; None without such locations."""
    parent = at.value.rpartition("/")[0]
    known = [projection.pointer for projection in project(shape, (), {})]
    beside = sorted(pointer for pointer in known if pointer and pointer.rpartition("/")[0] == parent)
    if not beside:
        return None
    more = ", …" if len(beside) > _MOST_BESIDE else ""
    return f"known: {', '.join(beside[:_MOST_BESIDE])}{more}"


def _similar(at: Located, shape: Shape, close: Callable[[str, Iterable[str]], str | None] = suggest) -> str | None:
    """Return a hint that names the location of a schema closest to a pointer; None if none is close."""
    known = [projection.pointer for projection in project(shape, (), {}) if projection.pointer]
    guess = close(at.value, [pointer for pointer in known if pointer != at.value])
    return f"did you mean '{guess}'?" if guess else None


def scalar_type(at: Located, shape: Shape, subject: str, report: Report, schema: str = "the schema") -> str | None:
    """Return the only scalar type at a pointer; if there is not exactly one, add an issue and return None."""
    if not check_pointer(at, subject, report):
        return None
    located = check_known(at, shape, subject, report, schema)
    if located is None:
        return None
    types = sorted(located.types - {"null"})
    if len(types) == 1 and types[0] in SCALARS:
        return types[0]
    allowed = ", ".join(sorted(located.types)) if len(located.types) < 7 else "anything"
    where = "" if schema == "the schema" else f" in {schema}"
    if len(types) > 1 and set(types) <= set(SCALARS):
        message = f"{subject} '{at.value}' must have one type, but may have any of {', '.join(types)}{where}"
    elif "fractional" in types and set(types) <= {"fractional", "integer"}:
        number = f"is a number{where}, which may have a fraction"
        message = f"{subject} '{at.value}' must be a boolean, integer or string, but {number}"
    else:
        message = f"{subject} '{at.value}' must be a boolean, integer or string, but may be {allowed}{where}"
    # A location of any type is often a misspelt one: `required` mentions it, and `properties` another.
    report.add("E304", message, at, _similar(at, shape) if allowed == "anything" else None)
    return None


class CollectionLocations:
    """The locations of one collection: its key, its logical partitions and its other projections.

    Args:
        definition: the collection.
        read: its read schema.
        write: its write schema; the same object if the collection has one schema.
        report: report for issues.
    """

    def __init__(self, definition: CollectionDef, read: ExaminedSchema, write: ExaminedSchema, report: Report) -> None:
        self._definition = definition
        self._read = read.shape
        self._write = write.shape
        self._schemas = (read,) if read is write else (read, write)
        self._fields = read.fields
        self._report = report

    def key(self) -> tuple[str, ...]:
        """Return the key's pointers."""
        at = self._definition.key
        if at is None:
            return ()
        if not at.value:
            self._report.add("E301", f"the key of '{self._definition.name}' is empty", at)
        for pointer_at in at.elements():
            if self._keyed(pointer_at, "the key"):
                self._check_reduction(pointer_at)
        return tuple(map(str, at.value))

    def projections(self) -> dict[str, Declared]:
        """Return the valid declared projections; report invalid projections."""
        at = self._definition.projections
        declared: dict[str, Declared] = {}
        if at is None or not at.value:
            return declared
        for field, projection_at in at.items():
            location = _location(projection_at)
            if location is None or not isinstance(location.value, str) or not is_pointer(location.value):
                self._report.add("E302", f"projection '{field}' needs a JSON pointer as its location", projection_at)
                continue
            partition = isinstance(projection_at.value, dict) and projection_at.value.get("partition") is True
            self._check_field(field, projection_at, partition=partition)
            if partition:
                self._keyed(location, f"the logical partition '{field}' at")
            elif not location.value.startswith("/_meta/"):
                check_known(location, self._read, f"projection '{field}' at", self._report)
            elsewhere = self._fields.get(field, location.value)
            if elsewhere != location.value:
                taken = f"'{elsewhere}'" if elsewhere else "the whole document"
                message = f"projection '{field}' is at '{location.value}', but the field '{field}' is {taken}"
                self._report.add("E305", message, location, "give the projection another name")
            declared[field] = Declared(location.value, partition)
        self._check_collisions(at)
        return declared

    def _keyed(self, at: Located, subject: str) -> bool:
        """Return true if both schemas have the same single scalar type at a location."""
        report = self._report
        if self._write is self._read:
            return scalar_type(at, self._read, subject, report) is not None
        read = scalar_type(at, self._read, subject, report, "the read schema")
        if not isinstance(at.value, str) or not is_pointer(at.value):
            return False
        write = scalar_type(at, self._write, subject, report, "the write schema")
        if read is None or write is None:
            return False
        if read != write:
            message = f"{subject} '{at.value}' is {_a(read)} in the read schema, but {_a(write)} in the write schema"
            report.add("E307", message, at)
        return read == write

    def _check_reduction(self, at: Located) -> None:
        location = parse_pointer(at.value)
        annotations = [at for schema in self._schemas for at in schema.annotations.get(location, ())]
        for annotation in annotations:
            strategy = annotation.value.get("strategy") if isinstance(annotation.value, dict) else None
            if strategy not in (None, "lastWriteWins"):
                message = f"the key '{at.value}' has the strategy '{strategy}', but a key cannot be reduced"
                self._report.add("E308", message, at, f"the strategy is at {annotation.position}")

    def _check_field(self, field: str, at: Located, *, partition: bool) -> None:
        if partition and not is_token(field):
            hint = "letters, numbers, '-', '_' and '.'"
            self._report.add("E101", f"'{field}' cannot be the name of a logical partition", at.key_position, hint)
        elif not is_field(field):
            hint = "write it like a JSON pointer without its first slash"
            self._report.add("E101", f"'{field}' cannot be the name of a projection", at.key_position, hint)

    def _check_collisions(self, at: Located) -> None:
        fields = list(at.value)
        for index, other, relation in collisions(fields):
            message = f"projection '{fields[index]}' {relation} projection '{fields[other]}'"
            self._report.add("E104", message, at[fields[index]].key_position)


def _location(projection: Located) -> Located | None:
    """Return the location of a projection, which is a string or a property of an object."""
    if isinstance(projection.value, str):
        return projection
    return projection["location"] if "location" in projection.value else None


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aio" else f"a {kind}"


def defaults(shape: Shape, key: Sequence[str]) -> tuple[object, ...]:
    """Return the default of each key pointer for documents that lack it."""
    return tuple(_default(shape, key))


def _default(shape: Shape, key: Sequence[str]) -> Iterator[object]:
    for pointer in key:
        default = locate(shape, parse_pointer(pointer))[0].default if is_pointer(pointer) else ()
        yield default[0] if default else None
