"""The tree of exceptions; and suggestions for misspelt names.

A `FlowError` is a failure with a cause that a person can correct. It is printed without a traceback, and names its
cause and a remedy. `to_json` and `from_json` transfer it from a Spark worker to the driver. Every other exception is a
defect of this project.

    FlowError
    ├── UsageError          the command line names something unknown, or combines options that exclude each other
    ├── CatalogError        a catalog with errors; holds every `Issue`
    ├── SchemaError         a JSON Schema that cannot be compiled
    ├── DocumentError       a document that breaks the rules of its collection
    │   ├── SchemaViolation     fails its JSON Schema
    │   └── ReductionError      two documents that cannot be reduced into one
    ├── LambdaError         a SQL block or a TypeScript method failed
    ├── StorageError        the data folder cannot carry out the request
    │   ├── FencedError         a newer holder of the same capability exists (law L5)
    │   ├── FrontierError       a time below `since`, or a write below `upper`
    │   ├── SegmentError        a file of a collection cannot be read
    │   │   └── SegmentMissingError a file of a collection is missing
    │   ├── StateMissingError   an object with the state of a shard is missing
    │   ├── BusyError           other processes locked the metadata database for too long
    │   │   └── UnansweredError     the metadata database does not answer
    │   ├── HeldError           another process holds the resource
    │   ├── OwnedError          the collection belongs to another writer
    │   ├── ObjectStoreError    an object store refuses a request
    │   │   └── UnreachableError    an object store does not answer, or is overloaded
    │   └── DiskFullError       no space left
    ├── EndpointError       the endpoint of a materialization refuses a request
    │   ├── EndpointGoneError   the endpoint cannot be reached
    │   ├── SessionFencedError  another session has opened the keys of a session of the current run
    │   └── DeniedError         the endpoint denies access or a permission
    ├── ProtocolError       a client or a connector breaks the protocol
    ├── SqlError            a SQL statement that cannot be executed; has an SQLSTATE
    │   └── ViewError           a materialized view has an error instead of rows
    ├── SlowViewError       a maintained view takes too long beside other views
    └── TaskError           a task cannot run as configured
        ├── SourceReplacedError a source is not the relation that the task has read
        ├── LostError           workers were lost, and could not be replaced
        │   └── OutdatedError       a newer attempt at the same work has begun
        ├── WorkerError         a worker lacks Python, or this release
        │   └── UnseenFolderError   a worker does not see the data folder
        ├── UnacceptedError     an edit of the task waits to be accepted
        ├── InternalError       an unexpected exception: a defect of this project
        └── EngineLostError     Spark has ended, so this process cannot continue
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any, ClassVar

from typing_extensions import override

from derive.plural import counted
from derive.position import Position


@dataclass(frozen=True, slots=True)
class Rejection:
    """A source document that a lambda cannot process in the present state.

    Attributes:
        index: index of the document in its batch.
        reason: the message of the error without the document.
    """

    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class Fact:
    """A value that belongs to an event, such as the document on which a lambda failed.

    Attributes:
        label: one or two words for the value, which precede it in a line of its own.
        lead: the text before the value in a message of one line.
        value: the value.
    """

    label: str
    lead: str
    value: str


class FlowError(Exception):
    """A failure with a cause outside this project.

    Attributes:
        message: the event, with the name of the affected thing and the facts, in one line.
        title: the event without the facts.
        facts: values that belong to the event.
        position: place of the cause in a file; None if the cause is in no file.
        hint: the remedy.
        rejection: the source document that caused the failure, if a repetition would fail in the same way; None
            otherwise.
        heals: true if the failure is transient, so that a retry without an edit may succeed.
    """

    heals: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        position: Position | None = None,
        hint: str | None = None,
        rejection: Rejection | None = None,
        facts: Sequence[Fact] = (),
    ) -> None:
        super().__init__(message)
        self.title = message
        self.facts = tuple(facts)
        self.message = message + "".join(fact.lead + fact.value for fact in self.facts)
        self.position = position
        self.hint = hint
        self.rejection = rejection

    def __str__(self) -> str:
        where = f"{self.position}: " if self.position else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{where}{self.message}{hint}"

    def to_json(self) -> dict[str, Any]:
        """Return this error as JSON, so that a worker can hand it to the driver as data."""
        position = None
        if self.position:
            position = [self.position.file, self.position.line, self.position.column, self.position.length]
        described = {"kind": type(self).__name__, "message": self.message, "position": position, "hint": self.hint}
        if self.facts:
            described["title"] = self.title
            described["facts"] = [[fact.label, fact.lead, fact.value] for fact in self.facts]
        return described

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> FlowError:
        """Return the error that `to_json` described; an unknown kind becomes a plain `FlowError`."""
        kinds = {kind.__name__: kind for kind in _descendants(FlowError)}
        kind = kinds.get(value["kind"], FlowError)
        if issubclass(kind, SqlError):
            return kind(
                value["sqlstate"],
                value["message"],
                hint=value.get("hint"),
                offset=value.get("offset"),
                detail=value.get("detail"),
            )
        position = Position(*value["position"]) if value.get("position") else None
        own = {name: value[name] for name in _OWN_FIELDS.get(kind, ())}
        if value.get("facts"):
            own["facts"] = [Fact(*fact) for fact in value["facts"]]
        message = value["title"] if "facts" in own else value["message"]
        return kind(message, position=position, hint=value.get("hint"), **own)


def _descendants(kind: type[FlowError]) -> list[type[FlowError]]:
    kinds = [kind]
    for child in kind.__subclasses__():
        if child is not CatalogError:
            kinds += _descendants(child)
    return kinds


class UsageError(FlowError):
    """The command line names something unknown, or combines options that exclude each other."""


@dataclass(frozen=True, slots=True)
class Issue:
    """An error or a note about one place of a catalog.

    Attributes:
        code: stable identifier: `E` and three digits for an error, `N` and three digits for a note.
        message: the defect, with the name of the affected thing.
        position: place in the catalog.
        hint: the probable intention.
    """

    code: str
    message: str
    position: Position
    hint: str | None = None

    @property
    def is_note(self) -> bool:
        """Return true for a note: the catalog may be correct."""
        return self.code.startswith("N")


class CatalogError(FlowError):
    """A catalog that cannot be built, with every issue of the run in file order."""

    def __init__(self, issues: Sequence[Issue]) -> None:
        self.issues = tuple(sorted(issues, key=lambda issue: issue.position))
        count = len(self.issues)
        lines = "; ".join(f"{issue.position}: {issue.message}" for issue in self.issues[:3])
        super().__init__(f"the catalog has {counted(count, 'error')}: {lines}")


class SchemaError(FlowError):
    """A JSON Schema that cannot be compiled, or whose annotations contradict each other."""


class DocumentError(FlowError):
    """A document that breaks the rules of its collection."""


class SchemaViolation(DocumentError):
    """A document that fails its collection's JSON Schema."""


class ReductionError(DocumentError):
    """Two documents of one key that their reduction annotations cannot reduce."""


class LambdaError(FlowError):
    """A lambda failed on a document, or cannot be prepared."""


def document_fact(document: str) -> Fact:
    """Return the document on which a lambda failed, as a fact.

    Args:
        document: the JSON of the document.
    """
    return Fact("document", "; the document was ", document)


class StorageError(FlowError):
    """The data folder cannot carry out the request."""


class UnwritableError(StorageError):
    """This user may only read the metadata database of the data folder."""


class FencedError(StorageError):
    """A newer holder of the same capability exists; the older holder can commit nothing more."""


class FrontierError(StorageError):
    """A read below `since`, or a write below `upper`."""


class SegmentError(StorageError):
    """A file of a collection is damaged, or cannot be read."""


class SegmentMissingError(SegmentError):
    """A file of a collection is missing, although the metadata has just named it.

    Attributes:
        path: path of the file, relative to the data folder.
    """

    def __init__(self, message: str, *, path: str, position: Position | None = None, hint: str | None = None) -> None:
        super().__init__(message, position=position, hint=hint)
        self.path = path

    @override
    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "path": self.path}


class StateMissingError(StorageError):
    """An object with the state of a shard is missing, although the metadata has just named it."""


class BusyError(StorageError):
    """Other processes locked a database for longer than the time limit."""

    heals = True


class UnansweredError(BusyError):
    """The metadata database does not answer, or ends the sessions of this process; nothing was committed."""


class HeldError(StorageError):
    """Another process holds the resource."""

    heals = True


class OwnedError(StorageError):
    """A collection belongs to another writer, so this writer cannot write it."""


class ObjectStoreError(StorageError):
    """An object store refuses a request; the cause may be corrected there."""

    heals = True


class UnreachableError(ObjectStoreError):
    """An object store does not answer, or is overloaded."""


class DiskFullError(StorageError):
    """The disk of the data folder is full."""

    heals = True


class EndpointError(FlowError):
    """The endpoint of a materialization refuses a request; the cause may be corrected there."""

    heals = True


class EndpointGoneError(EndpointError):
    """The endpoint of a materialization cannot be reached."""


class SessionFencedError(EndpointError):
    """At an endpoint, another session has fenced a session of a run that still has its task.

    Attributes:
        shard: number of the shard.
        token: name of the attempt whose commit the session has seen last, empty for none; None if it was not opened.
    """

    def __init__(
        self, message: str, *, shard: int, token: str | None, position: Position | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, position=position, hint=hint)
        self.shard, self.token = shard, token

    @override
    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "shard": self.shard, "token": self.token}


class DeniedError(EndpointError):
    """The endpoint of a materialization denies access or a permission."""


class ProtocolError(FlowError):
    """A client or a connector breaks the protocol: a defect of that program or of this project."""


class SlowViewError(FlowError):
    """A maintained view takes too long beside other views, and is maintained alone."""


@dataclass(frozen=True, slots=True)
class Violation:
    """The constraint of a table that rows violate: a named constraint, or NOT NULL of a column."""

    table: str
    constraint: str | None = None
    column: str | None = None
    schema: str = "public"


class SqlError(FlowError):
    """A SQL statement that cannot be executed.

    Attributes:
        sqlstate: five characters, as in PostgreSQL.
        offset: place of the cause in the statement's text, in characters from 0; None if unknown.
        detail: additional text about the cause; None for none.
        violation: the violated constraint; None for other errors.
    """

    def __init__(
        self,
        sqlstate: str,
        message: str,
        *,
        hint: str | None = None,
        offset: int | None = None,
        detail: str | None = None,
        violation: Violation | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.sqlstate = sqlstate
        self.offset = offset
        self.detail = detail
        self.violation = violation

    def to_json(self) -> dict[str, Any]:
        """Return this error as JSON, with its SQLSTATE."""
        return {**super().to_json(), "sqlstate": self.sqlstate, "offset": self.offset, "detail": self.detail}


class ViewError(SqlError):
    """A materialized view has an error instead of rows, until its inputs are corrected."""

    heals = True

    def __str__(self) -> str:
        return f"{self.message} (SQLSTATE {self.sqlstate}; {self.remedy})"

    @property
    def remedy(self) -> str:
        """Return the time of the error and the remedy, in words."""
        return "; ".join(filter(None, (self.detail, self.hint)))


class TaskError(FlowError):
    """A task cannot run as it is configured."""


class SourceReplacedError(TaskError):
    """A source was recreated, renamed or reset, so it is not the relation that the task has read."""


class LostError(TaskError):
    """Workers were lost, and could not be replaced."""

    heals = True


class OutdatedError(LostError):
    """A newer attempt at the same work has begun; the result of this attempt is discarded."""


class WorkerError(TaskError):
    """A worker lacks the data folder, Python, or this release of the package."""


class UnseenFolderError(WorkerError):
    """A worker does not see the data folder, or sees another one at its path."""


class UnacceptedError(TaskError):
    """An edit of a task waits to be accepted or undone; no part of the edit was applied."""


class InternalError(TaskError):
    """An unexpected exception: a defect of this project, reported as the failure of the task."""


class EngineLostError(TaskError):
    """Spark has ended, so this process cannot continue; a new process resumes the work."""


_OWN_FIELDS: Mapping[type[FlowError], Sequence[str]] = {
    SegmentMissingError: ("path",),
    SessionFencedError: ("shard", "token"),
}
"""Attributes of errors in addition to those of `FlowError`."""

_FAR = 4


def distance(left: str, right: str, limit: int | None = None) -> int:
    """Return the optimal string alignment distance.

    The distance counts insertions, deletions, substitutions and swaps of neighbours.

    Args:
        left: one text.
        right: the other text.
        limit: the function may stop early and return any number greater than `limit` if the distance is greater.
    """
    if limit is not None:
        left, right = _differing(left, right)
        if abs(len(left) - len(right)) > limit:
            return limit + 1
    before: list[int] = []
    row = list(range(len(right) + 1))
    for index, letter in enumerate(left, start=1):
        earlier, before, row = before, row, [index]
        for other, candidate in enumerate(right, start=1):
            best = min(before[other] + 1, row[other - 1] + 1, before[other - 1] + (letter != candidate))
            if index > 1 and other > 1 and letter == right[other - 2] and left[index - 2] == candidate:
                best = min(best, earlier[other - 2] + 1)
            row.append(best)
        if limit is not None and min(row) > limit and min(before) > limit:
            return limit + 1
    return row[-1]


def suggest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name closest to `name`; None if every distance is above 4 or half the name's length."""
    limit = min(_FAR, (len(name) + 1) // 2)
    closest: str | None = None
    for candidate in sorted(known, key=lambda candidate: (-len(commonprefix((name, candidate))), candidate)):  # noqa: RUF071 (characters are meant)
        far = distance(name, candidate, limit)
        if far < limit or (far == limit and (closest is None or candidate < closest)):
            closest, limit = candidate, far
    return closest


_NEAR = 5
"""Number of characters of a misspelt name per difference."""


def suggest_misspelt(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is so close to a possible name that a misspelling is likely; None for no such name."""
    guess = suggest(name, known)
    return guess if guess and distance(name, guess) <= max(1, len(name) // _NEAR) else None


def suggest_path(name: str, known: Collection[str]) -> str | None:
    """Return the known name that a name without its first parts stands for, or else the closest one.

    >>> suggest_path("orders", ["shop/orders", "shop/order-lines"])
    'shop/orders'
    """
    exact = sorted(candidate for candidate in known if candidate.endswith(f"/{name}"))
    if exact:
        return exact[0]
    guess = suggest(name, known)
    if guess is not None or "/" in name:
        return guess
    lasts = {candidate.rpartition("/")[2]: candidate for candidate in sorted(known, reverse=True)}
    last = suggest_misspelt(name, lasts)
    return None if last is None else lasts[last]


def _differing(left: str, right: str) -> tuple[str, str]:
    """Return two texts without their common prefix and suffix."""
    begin = len(commonprefix((left, right)))  # noqa: RUF071 (characters are meant)
    left, right = left[begin:], right[begin:]
    end = 0
    for end in range(min(len(left), len(right))):
        if left[-1 - end] != right[-1 - end]:
            break
    else:
        end = min(len(left), len(right))
    return left[: len(left) - end], right[: len(right) - end]
