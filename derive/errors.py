"""The one exception tree.

A `FlowError` is a failure a person can do something about: it is printed without a traceback, says where the cause
is and what to do, and survives the trip from a Spark worker to the driver (`to_json`, `from_json`). Anything else
that is raised is a defect of this project.

    FlowError
    ├── UsageError          the command line asks for something that does not exist or does not fit
    ├── CatalogError        what a person wrote in a catalog; holds every `Issue` found
    ├── SchemaError         a JSON Schema that cannot be compiled
    ├── DocumentError       a document that is not what its collection promises
    │   ├── ParseError          not JSON, or not a JSON object
    │   ├── SchemaViolation     fails its JSON Schema
    │   └── ReductionError      two documents that cannot be reduced into one
    ├── LambdaError         a SQL block or a TypeScript method failed
    ├── StorageError        the data folder cannot do what was asked
    │   ├── FencedError         a newer holder of the same capability exists (law L5)
    │   ├── FrontierError       a time below `since`, or a write below `upper`
    │   ├── SegmentError        a file of a collection cannot be read
    │   │   └── SegmentMissingError it is not there
    │   ├── BusyError           other processes kept the metadata database to themselves
    │   ├── HeldError           another process holds what is needed, and does not let it go
    │   ├── OwnedError          a collection belongs to another writer
    │   └── DiskFullError       no space left
    ├── EndpointError       a database or service that is materialized into refuses something
    │   ├── EndpointGoneError   it cannot be reached, or has gone away
    │   └── DeniedError         it does not let us in, or do what must be done
    ├── ProtocolError       a client or a connector does not keep to the protocol
    ├── SqlError            a statement of SQL that cannot be carried out; has an SQLSTATE
    │   └── ViewError           a materialized view has an error in the place of rows
    └── TaskError           a task cannot run as configured
        ├── SourceReplacedError a source is another relation than the one that the task has read
        ├── LostError           workers were lost, and could not be replaced
        │   └── OutdatedError       a newer attempt at the same work has begun
        ├── WorkerError         a worker lacks the data folder, Python, or this package
        ├── UnacceptedError     an edit of it waits to be accepted
        ├── InternalError       something nobody foresaw: a defect of this project
        └── EngineLostError     Spark itself is gone, and with it what this process could do
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from derive.position import Position


class FlowError(Exception):
    """A failure with a cause outside this project.

    Attributes:
        message: what happened, naming the thing it happened to.
        position: where its cause is written, if it is in a file.
        hint: what to do about it.
        heals: it may well be gone later, with nothing edited: worth another try.
    """

    heals: ClassVar[bool] = False

    def __init__(self, message: str, *, position: Position | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.position = position
        self.hint = hint

    def __str__(self) -> str:
        where = f"{self.position}: " if self.position else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{where}{self.message}{hint}"

    def to_json(self) -> dict[str, Any]:
        """This error as JSON, so that a worker can hand it to the driver as data."""
        position = None
        if self.position:
            position = [self.position.file, self.position.line, self.position.column, self.position.length]
        return {"kind": type(self).__name__, "message": self.message, "position": position, "hint": self.hint}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> FlowError:
        """The error that `to_json` described; an unknown kind comes back as a plain `FlowError`."""
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
        return kind(value["message"], position=position, hint=value.get("hint"))


def _descendants(kind: type[FlowError]) -> list[type[FlowError]]:
    kinds = [kind]
    for child in kind.__subclasses__():
        if child is not CatalogError:
            kinds += _descendants(child)
    return kinds


class UsageError(FlowError):
    """The command line names something that does not exist, or combines what does not fit."""


@dataclass(frozen=True, slots=True)
class Issue:
    """One thing wrong in a catalog, or worth a note.

    Attributes:
        code: stable identifier, `E` and three digits; `N` for what may be right.
        message: what is wrong, naming the thing.
        position: where it is written.
        hint: what was probably meant.
    """

    code: str
    message: str
    position: Position
    hint: str | None = None

    @property
    def is_note(self) -> bool:
        """Whether it may be right all the same."""
        return self.code.startswith("N")


class CatalogError(FlowError):
    """A catalog that cannot be built; every issue of the run, in file order."""

    def __init__(self, issues: Sequence[Issue]) -> None:
        self.issues = tuple(sorted(issues, key=lambda issue: issue.position))
        count = len(self.issues)
        lines = "; ".join(f"{issue.position}: {issue.message}" for issue in self.issues[:3])
        super().__init__(f"the catalog has {count} error{'' if count == 1 else 's'}: {lines}")


class SchemaError(FlowError):
    """A JSON Schema that cannot be compiled, or whose annotations make no sense."""


class DocumentError(FlowError):
    """A document is not what its collection promises."""


class ParseError(DocumentError):
    """Text that is not JSON, or not a JSON object."""


class SchemaViolation(DocumentError):
    """A document that fails its collection's JSON Schema."""


class ReductionError(DocumentError):
    """Two documents of one key that their reduction annotations cannot reduce."""


class LambdaError(FlowError):
    """A lambda failed on a document, or cannot be prepared."""


class StorageError(FlowError):
    """The data folder cannot do what was asked."""


class FencedError(StorageError):
    """A newer holder of the same capability exists; this one can commit nothing more."""


class FrontierError(StorageError):
    """A read below `since`, or a write below `upper`."""


class SegmentError(StorageError):
    """A file that is part of a collection is damaged, or cannot be read."""


class SegmentMissingError(SegmentError):
    """A file that was part of a collection when it was looked at is not there."""


class BusyError(StorageError):
    """Other processes kept a database to themselves for longer than anyone waits."""

    heals = True


class HeldError(StorageError):
    """Another process holds what is needed, and does not let it go."""

    heals = True


class OwnedError(StorageError):
    """A collection belongs to another writer, and may not be written this way."""


class DiskFullError(StorageError):
    """No space is left where the data folder lies."""

    heals = True


class EndpointError(FlowError):
    """A database or service that is materialized into refuses something; it may well be mended there."""

    heals = True


class EndpointGoneError(EndpointError):
    """A database or service that is materialized into cannot be reached, or has gone away."""


class DeniedError(EndpointError):
    """A database or service that is materialized into does not let us in, or do what must be done."""


class ProtocolError(FlowError):
    """A client or a connector does not keep to the protocol; another implementation's defect, or ours."""


class SqlError(FlowError):
    """A statement of SQL that cannot be carried out.

    Attributes:
        sqlstate: five characters, as PostgreSQL has them.
        offset: where in the statement's text the cause is, in characters from 0 on; None if nowhere in it.
        detail: more about what happened.
    """

    def __init__(
        self,
        sqlstate: str,
        message: str,
        *,
        hint: str | None = None,
        offset: int | None = None,
        detail: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.sqlstate = sqlstate
        self.offset = offset
        self.detail = detail

    def to_json(self) -> dict[str, Any]:
        """This error as JSON, with its SQLSTATE."""
        return {**super().to_json(), "sqlstate": self.sqlstate, "offset": self.offset, "detail": self.detail}


class ViewError(SqlError):
    """A materialized view has an error in the place of rows, until what it is made of is corrected."""

    heals = True

    def __str__(self) -> str:
        return f"{self.message} (SQLSTATE {self.sqlstate}; {self.remedy})"

    @property
    def remedy(self) -> str:
        """Since when it is there, and what to do about it."""
        return "; ".join(filter(None, (self.detail, self.hint)))


class TaskError(FlowError):
    """A task cannot run as it is configured."""


class SourceReplacedError(TaskError):
    """A source of a task is another relation than the one that the task has read: created again, renamed or reset."""


class LostError(TaskError):
    """Workers were lost, and could not be replaced."""

    heals = True


class OutdatedError(LostError):
    """A newer attempt at the same work has begun; what this one would say is of no use to anyone."""


class WorkerError(TaskError):
    """A worker lacks what every worker needs: the data folder, Python, or this package."""


class UnacceptedError(TaskError):
    """An edit of a task waits to be accepted, or to be undone; nothing of it was applied."""


class InternalError(TaskError):
    """Something nobody foresaw: a defect of this project, told as the failure of the task that met it."""


class EngineLostError(TaskError):
    """Spark itself is gone, and with it what this process could do; another one goes on where it stopped."""
