"""Commands of a controller to a compute instance, and its responses.

Commands are an append-only log of what the instance is to be. `Hello` begins a session, `CreateInstance` begins the log
anew, `InitializationComplete` ends the part of it that says what there was before: whatever it did not name is to be
dropped. Frontiers are absolute, so to hear one twice or late changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

from derive.algebra.expression_parts import gets_of
from derive.algebra.relation import Finishing, GlobalId, Relation
from derive.algebra.types import Datum, Row
from derive.compute.instance import Progress
from derive.errors import FlowError
from derive.position import Position
from derive.relations.columns import Source
from derive.storage.table import Table

PROTOCOL = "flow.compute.v1"

Update: TypeAlias = tuple[int, Row, int]
"""Time, row and diff."""


@dataclass(frozen=True, slots=True)
class Index:
    """Rows are kept where they can be looked up fast.

    Attributes:
        columns: the numbers of those by which; empty for rows that are only read whole.
    """

    columns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Materialized:
    """Rows are written to Storage, to the table that has the dataflow's identifier."""


@dataclass(frozen=True, slots=True)
class Tail:
    """Rows are sent as they change.

    Attributes:
        has_snapshot: whether the rows at the dataflow's `as_of` are sent first, as updates of that time.
        of: a dataflow that has the same rows, if there is one: where it is known at `as_of`, it is followed.
        up_to: the time at which it ends, with nothing sent of that time or later; None for never.
    """

    has_snapshot: bool
    of: GlobalId | None = None
    up_to: int | None = None


Export: TypeAlias = Index | Materialized | Tail


@dataclass(frozen=True, slots=True)
class Import:
    """What a dataflow reads of Storage.

    Attributes:
        id: under which the plan reads it.
        source: what it is there, but for what changes without any other row: positions in files, frontiers.
        name: of that, to be told; a table may get another one.
    """

    id: GlobalId
    source: Source
    name: str = field(compare=False)

    @staticmethod
    def of(identifier: GlobalId, source: Source) -> Import:
        """What Storage has under an identifier."""
        if isinstance(source, Table):
            return Import(identifier, replace(source, name="", since=0, upper=0), source.name)
        nowhere = Position("", 0, 0)
        kept = replace(source, position=nowhere, write_positions={}, read_positions={})
        return Import(identifier, kept, source.name)


@dataclass(frozen=True, slots=True)
class Dataflow:
    """A relation to be maintained.

    Two are the same if all is equal but `as_of`, `number` and `name`.

    Attributes:
        id: of what it exports, by which it is known.
        plan: over imports, and what other dataflows export.
        imports: sorted by identifier.
        export: what becomes of its rows.
        as_of: from this time on it can be asked, or from a later one that is reported.
        number: greater for each that one controller has had created. What is told of a dataflow may be under way while
            it is dropped, and another one created under its identifier.
        name: for people.
    """

    id: GlobalId
    plan: Relation
    imports: tuple[Import, ...]
    export: Export
    as_of: int = field(compare=False)
    number: int = field(default=0, compare=False)
    name: str = field(default="", compare=False)


def reads_of(dataflow: Dataflow) -> frozenset[GlobalId]:
    """The dataflows that a dataflow is over."""
    imported = {source.id for source in dataflow.imports}
    return frozenset(get.id for get in gets_of(dataflow.plan) if get.id not in imported)


@dataclass(frozen=True, slots=True)
class Hello:
    """A controller begins a session; an older one is closed out.

    Attributes:
        epoch: greater with each start of a controller.
        session: greater with each connection of that controller; an earlier one may arrive late.
        protocol: of which these messages are.
        folder: identifies the data folder, which must be that of the instance.
    """

    epoch: int
    session: int
    protocol: str = PROTOCOL
    folder: str = ""


@dataclass(frozen=True, slots=True)
class CreateInstance:
    """The log begins anew; peeks of before are void.

    Attributes:
        name: of the instance, which all replicas have in common.
    """

    name: str = "default"


@dataclass(frozen=True, slots=True)
class CreateDataflows:
    """Maintain dataflows; one that is there, is the same, and is known at `as_of` is kept."""

    dataflows: tuple[Dataflow, ...]


@dataclass(frozen=True, slots=True)
class AllowCompaction:
    """Nobody asks for earlier times.

    Attributes:
        frontiers: by identifier of a dataflow, the time from which on it is asked for; `END_OF_TIME` drops it.
    """

    frontiers: tuple[tuple[GlobalId, int], ...]


@dataclass(frozen=True, eq=False)
class Query:
    """What is asked again and again, with other arguments; whoever prepares it remembers it by its identity.

    Attributes:
        relation: over what dataflows export, with parameters.
        finishing: what becomes of its rows.
    """

    relation: Relation
    finishing: Finishing

    @cached_property
    def reads(self) -> frozenset[GlobalId]:
        """The dataflows that it is over."""
        return frozenset(get.id for get in gets_of((self.relation, self.finishing)))


@dataclass(frozen=True, slots=True)
class Peek:
    """Send the rows of a query once they are known.

    Attributes:
        uuid: of this peek among all.
        query: what is asked.
        time: at which.
        arguments: one for each parameter.
        most_bytes: so much may be in the result; None for any amount.
    """

    uuid: int
    query: Query
    time: int
    arguments: tuple[Datum, ...] = ()
    most_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class CancelPeeks:
    """Nobody waits any more for peeks."""

    uuids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InitializationComplete:
    """All was named that there was before this session."""


Command: TypeAlias = (
    Hello | CreateInstance | CreateDataflows | AllowCompaction | Peek | CancelPeeks | InitializationComplete
)


@dataclass(frozen=True, slots=True)
class Welcome:
    """What became of dataflows when a session began; nothing is answered before.

    Attributes:
        process: tells processes of instances apart.
        epoch: of the controller.
        kept: dataflows that went on as they were.
        rebuilt: those that are made, as they were not there, or not the same.
        dropped: those that were there and not named.
        reasons: why each of `rebuilt` was.
        names: of all of these, as far as they were told.
    """

    process: str
    epoch: int
    kept: tuple[GlobalId, ...]
    rebuilt: tuple[GlobalId, ...]
    dropped: tuple[GlobalId, ...]
    reasons: tuple[str, ...] = ()
    names: Mapping[GlobalId, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.told(lambda _: None)

    def told(self, known: Callable[[GlobalId], str | None]) -> str:
        """What became of dataflows, for people.

        Args:
            known: what a dataflow is called by now; None if that is not known.
        """

        def name_of(identifier: GlobalId) -> str:
            return known(identifier) or self.names.get(identifier) or f"u{identifier}"

        kept, dropped = (", ".join(map(name_of, ids)) or "nothing" for ids in (self.kept, self.dropped))
        whys = zip(self.rebuilt, self.reasons, strict=True)
        rebuilt = ", ".join(f"{name_of(one)} ({why})" for one, why in whys) or "nothing"
        return f"kept {kept}; rebuilt {rebuilt}; dropped {dropped}"


@dataclass(frozen=True, slots=True)
class Upper:
    """How far a dataflow is.

    Attributes:
        id: of the dataflow.
        since: from this time on it can be asked.
        upper: everything below is complete.
        number: of the dataflow.
    """

    id: GlobalId
    since: int
    upper: int
    number: int = 0


@dataclass(frozen=True, slots=True)
class FrontierUppers:
    """How far dataflows are, where that has changed."""

    uppers: tuple[Upper, ...]


@dataclass(frozen=True, slots=True)
class PeekResponse:
    """Rows of a peek, or why there are none.

    Attributes:
        uuid: of the peek.
        result: rows, which follow those of responses before; or an error, where a `FrontierError` means that this
            instance does not maintain everything at that time.
        is_last: whether none follow.
    """

    uuid: int
    result: Sequence[Row] | FlowError
    is_last: bool = True


@dataclass(frozen=True, slots=True)
class TailResponse:
    """What is new in a tail.

    Attributes:
        id: of the dataflow.
        lower: where the tail was.
        upper: where it is now; it is `lower` where more of the snapshot follows.
        updates: at `lower` or later and before `upper`, by time; those of the snapshot are at `as_of`.
        failure: an error that there is in the place of rows, before `upper`.
    """

    id: GlobalId
    lower: int
    upper: int
    updates: tuple[Update, ...]
    failure: FlowError | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """A dataflow does not go on.

    Attributes:
        id: of the dataflow.
        failure: why; None if it goes on again.
        number: of the dataflow.
    """

    id: GlobalId
    failure: FlowError | None
    number: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """How an instance's process is; it replaces the one before.

    Attributes:
        memory_bytes: that are in its memory; 0 where that cannot be told.
        hydrations: how far dataflows of many rows are that have yet to begin.
    """

    memory_bytes: int
    hydrations: tuple[Progress, ...]


Response: TypeAlias = Welcome | FrontierUppers | PeekResponse | TailResponse | Status | Report
