"""Commands of a controller to a compute instance, and its responses.

Commands are an append-only log of the desired state. `Hello` begins a session, `CreateInstance` restarts the log, and
`InitializationComplete` ends its initial part: dataflows that this part did not name are dropped. Frontiers are
absolute, so a repeated or late frontier has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

from derive.algebra.expression import Expression
from derive.algebra.relation import Finishing, GlobalId, Relation
from derive.algebra.rewrite import gets_of
from derive.algebra.types import Datum, Row
from derive.compute.instance import Progress
from derive.errors import FlowError
from derive.position import Position
from derive.relations.columns import Source
from derive.storage.table_types import Table

PROTOCOL = "flow.compute.v1"

Update: TypeAlias = tuple[int, Row, int]
"""Time, row and diff."""


@dataclass(frozen=True, slots=True)
class Index:
    """An index for fast lookups of rows.

    Attributes:
        key: expressions over the rows, by which rows are looked up; empty for rows that are only scanned.
    """

    key: tuple[Expression, ...] = ()


@dataclass(frozen=True, slots=True)
class Materialized:
    """An export to Storage, into the table with the dataflow's identifier.

    Attributes:
        definition: number of the view's definition.
    """

    definition: int


@dataclass(frozen=True, slots=True)
class Tail:
    """A subscription: changes of rows are sent at once.

    Attributes:
        has_snapshot: whether the rows at the dataflow's `as_of` are sent first, as updates of that time.
        of: a dataflow with the same rows, which is read if it is known at `as_of`; None if missing.
        up_to: time before which the subscription ends; None for no end.
    """

    has_snapshot: bool
    of: GlobalId | None = None
    up_to: int | None = None


Export: TypeAlias = Index | Materialized | Tail


@dataclass(frozen=True, slots=True)
class Import:
    """A collection of Storage that a dataflow reads.

    Attributes:
        id: identifier in the plan.
        source: the collection, without properties that change without the rows, such as positions in files.
        name: name of the collection, for messages; a table may be renamed.
    """

    id: GlobalId
    source: Source
    name: str = field(compare=False)

    @staticmethod
    def of(identifier: GlobalId, source: Source) -> Import:
        """Return the import of a collection."""
        if isinstance(source, Table):
            return Import(identifier, replace(source, name="", since=0, upper=0, definition=0), source.name)
        nowhere = Position("", 0, 0)
        kept = replace(source, position=nowhere, write_positions={}, read_positions={})
        return Import(identifier, kept, source.name)


@dataclass(frozen=True, slots=True)
class Dataflow:
    """A requested dataflow.

    Two dataflows are equal if all attributes except `as_of`, `number` and `name` are equal.

    Attributes:
        id: identifier of the dataflow and its export.
        plan: relation over imports, and exports of other dataflows.
        imports: imports sorted by identifier.
        export: the export of its rows.
        as_of: time from which on the dataflow can be read, unless the instance reports a later time.
        number: number that a controller increases with each dataflow. It is needed because a response about a dropped
            dataflow may arrive after the creation of another dataflow with the same identifier.
        name: name, for people.
    """

    id: GlobalId
    plan: Relation
    imports: tuple[Import, ...]
    export: Export
    as_of: int = field(compare=False)
    number: int = field(default=0, compare=False)
    name: str = field(default="", compare=False)


def reads_of(dataflow: Dataflow) -> frozenset[GlobalId]:
    """Return the dataflows that a dataflow reads."""
    imported = {source.id for source in dataflow.imports}
    return frozenset(get.id for get in gets_of(dataflow.plan) if get.id not in imported)


@dataclass(frozen=True, slots=True)
class Hello:
    """The start of a session; an older session is fenced.

    Attributes:
        epoch: number that increases with each start of a controller.
        session: number that increases with each connection of the controller; an earlier connection may arrive late.
        protocol: version of the protocol.
        folder: identifier of the data folder, which must be the data folder of the instance.
    """

    epoch: int
    session: int
    protocol: str = PROTOCOL
    folder: str = ""


@dataclass(frozen=True, slots=True)
class CreateInstance:
    """The restart of the log; earlier peeks are void.

    Attributes:
        name: name of the instance, which all replicas share.
    """

    name: str = "default"


@dataclass(frozen=True, slots=True)
class CreateDataflows:
    """A command to maintain dataflows.

    A running dataflow continues if it has the same definition as the requested dataflow, and its contents are known at
    the requested `as_of`.
    """

    dataflows: tuple[Dataflow, ...]


@dataclass(frozen=True, slots=True)
class AllowCompaction:
    """A command that allows compaction.

    Attributes:
        frontiers: time from which on a dataflow is read, by its identifier; `END_OF_TIME` drops it.
    """

    frontiers: tuple[tuple[GlobalId, int], ...]


@dataclass(frozen=True, eq=False)
class Query:
    """A query that is repeated with other arguments, and compared by identity.

    Attributes:
        relation: relation over exports of dataflows, with parameters.
        finishing: the final processing of its rows.
    """

    relation: Relation
    finishing: Finishing

    @cached_property
    def reads(self) -> frozenset[GlobalId]:
        """Return the dataflows that the query reads."""
        return frozenset(get.id for get in gets_of((self.relation, self.finishing)))


@dataclass(frozen=True, slots=True)
class Peek:
    """A command to send the rows of a query as soon as they are known.

    Attributes:
        uuid: unique identifier of the peek.
        query: the query.
        time: time of the rows.
        arguments: arguments of the parameters.
        most_bytes: maximum size of the result; None for no limit.
    """

    uuid: int
    query: Query
    time: int
    arguments: tuple[Datum, ...] = ()
    most_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class CancelPeeks:
    """A command to cancel peeks."""

    uuids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InitializationComplete:
    """The end of the log's initial part."""


Command: TypeAlias = (
    Hello | CreateInstance | CreateDataflows | AllowCompaction | Peek | CancelPeeks | InitializationComplete
)


@dataclass(frozen=True, slots=True)
class Welcome:
    """The outcome of the reconciliation at the start of a session, which is sent before all answers.

    Attributes:
        process: unique name of the instance's process.
        epoch: epoch of the controller.
        kept: dataflows that continue unchanged.
        rebuilt: dataflows that are created, because they were missing or had another definition.
        dropped: dataflows that the controller did not name.
        reasons: the reason for each of `rebuilt`.
        names: names of all these dataflows, if known.
    """

    process: str
    epoch: int
    kept: tuple[GlobalId, ...]
    rebuilt: tuple[GlobalId, ...]
    dropped: tuple[GlobalId, ...]
    reasons: tuple[str, ...] = ()
    names: Mapping[GlobalId, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.describe(lambda _: None)

    def describe(self, known: Callable[[GlobalId], str | None]) -> str:
        """Return the outcome as text, for people.

        Args:
            known: returns the present name of a dataflow; None if it is unknown.
        """

        def name_of(identifier: GlobalId) -> str:
            return known(identifier) or self.names.get(identifier) or f"u{identifier}"

        kept, dropped = (", ".join(map(name_of, ids)) or "nothing" for ids in (self.kept, self.dropped))
        whys = zip(self.rebuilt, self.reasons, strict=True)
        rebuilt = ", ".join(f"{name_of(one)} ({why})" for one, why in whys) or "nothing"
        return f"kept {kept}; rebuilt {rebuilt}; dropped {dropped}"


@dataclass(frozen=True, slots=True)
class Upper:
    """The progress of a dataflow.

    Attributes:
        id: identifier of the dataflow.
        since: time from which on it can be read.
        upper: time before which everything is complete.
        number: number of the dataflow.
    """

    id: GlobalId
    since: int
    upper: int
    number: int = 0


@dataclass(frozen=True, slots=True)
class FrontierUppers:
    """Changed progress of dataflows."""

    uppers: tuple[Upper, ...]


@dataclass(frozen=True, slots=True)
class PeekResponse:
    """Rows of a peek, or an error.

    Attributes:
        uuid: identifier of the peek.
        result: rows, which follow the rows of earlier responses; or an error. A `FrontierError` means that this
            instance does not maintain all dataflows of the query at the time.
        is_last: whether it is the last response.
    """

    uuid: int
    result: Sequence[Row] | FlowError
    is_last: bool = True


@dataclass(frozen=True, slots=True)
class TailResponse:
    """New updates of a subscription.

    Attributes:
        id: identifier of the dataflow.
        lower: former frontier.
        upper: new frontier; equal to `lower` if more of the snapshot follows.
        updates: updates from `lower` to before `upper`, by time; updates of the snapshot are at `as_of`.
        failure: an error in place of rows, before `upper`.
    """

    id: GlobalId
    lower: int
    upper: int
    updates: tuple[Update, ...]
    failure: FlowError | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """The failure or recovery of a dataflow.

    Attributes:
        id: identifier of the dataflow.
        failure: the error; None if it has resumed.
        number: number of the dataflow.
    """

    id: GlobalId
    failure: FlowError | None
    number: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """The state of an instance's process; it replaces the previous report.

    Attributes:
        memory_bytes: resident memory; 0 if unknown.
        hydrations: progress of large dataflows that hydrate.
    """

    memory_bytes: int
    hydrations: tuple[Progress, ...]


Response: TypeAlias = Welcome | FrontierUppers | PeekResponse | TailResponse | Status | Report
