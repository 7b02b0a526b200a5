"""Planner of WITH clauses with statements that write, and of the main statement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from typing_extensions import override

from derive.algebra.relation import Get
from derive.algebra.types import Type
from derive.errors import SqlError
from derive.sql.parser.ast import CommonTable, With
from derive.sql.parser.parse import too_complex
from derive.sql.parser.statement import CommonWrite, SelectStatement, WithWrites
from derive.sql.planner.coercion import ParameterTypes
from derive.sql.planner.dependencies import ids_of
from derive.sql.planner.interfaces import CommonRelation, Names
from derive.sql.planner.plan import finished
from derive.sql.planner.planned import PlannedQuery, PlannedWithWrites, PlannedWrite, returned_id
from derive.sql.planner.queries import QueryPlanner, refers_to, renamed
from derive.sql.planner.writes import plan_write_of

_MOST_WRITES = 1000
"""Greatest number of writes in a WITH clause; identifiers are reserved for the RETURNING rows of each."""


class _PartialTypes(ParameterTypes):
    """Types of parameters while some parts of a statement are not planned yet."""

    @override
    def finish(self) -> tuple[Type, ...]:
        """Return no types."""
        return ()


def plan_with_writes(statement: WithWrites, names: Names, types: Sequence[Type | None] = ()) -> PlannedWithWrites:
    """Plan a WITH clause with writes, and the main statement.

    The statement is planned twice, because a part may use a parameter whose type follows from a later part.

    Args:
        statement: the statement.
        names: names of relations.
        types: types of its parameters, as far as known.

    Raises:
        SqlError: the statement is invalid; or two parts write one table, or a part reads rows of a write without
            RETURNING (0A000).
    """
    draft = _PartialTypes(types)
    try:
        _plan(statement, names, draft)
        return _plan(statement, names, ParameterTypes(draft.known()))
    except RecursionError:
        raise too_complex() from None


def _plan(statement: WithWrites, names: Names, parameters: ParameterTypes) -> PlannedWithWrites:
    if len(statement.writes) > _MOST_WRITES:
        raise too_complex()
    _check_names(statement)
    queries = QueryPlanner(names, parameters)
    tables: Sequence[CommonTable] = statement.common.common_tables
    writes: list[PlannedWrite] = []
    begin = 0
    for write in statement.writes:
        queries.define(With(tuple(tables[begin : write.position])), None)
        begin = write.position
        planned = plan_write_of(write.statement, queries, parameters)
        returned = returned_id(len(writes))
        writes.append(_without_returned(planned))
        columns = planned.returning or ()
        relation = Get(returned, tuple(column.type for column in columns), tuple(column.modifier for column in columns))
        own = renamed(
            tuple(column.name for column in columns), write.columns, f'WITH query "{write.name}"', write.offset
        )
        queries.common = {**queries.common, write.name: CommonRelation(relation, own, 0)}
    queries.define(With(tuple(tables[begin:])), None)
    main: PlannedWrite | PlannedQuery
    if isinstance(statement.statement, SelectStatement):
        main = finished(queries.plan(statement.statement.query, None), parameters.finish(), queries.views)
    else:
        main = _without_returned(plan_write_of(statement.statement, queries, parameters))
    written = [part.table for part in (*writes, main) if isinstance(part, PlannedWrite)]
    for index, table in enumerate(written):
        if any(table.id == other.id for other in written[:index]):
            hint = "Write the statements one by one, in a transaction."
            raise SqlError("0A000", f'several parts of WITH write the table "{table.name}"', hint=hint)
    return PlannedWithWrites(tuple(writes), main, parameters.finish())


def _check_names(statement: WithWrites) -> None:
    """Check that the names in WITH differ, and that no part reads a write without RETURNING."""
    parts: Sequence[CommonWrite | CommonTable] = (*statement.writes, *statement.common.common_tables)
    names = [part.name for part in parts]
    for index, part in enumerate(parts):
        if part.name in names[:index]:
            message = f'WITH query name "{part.name}" specified more than once'
            raise SqlError("42712", message, offset=part.offset)
    for write in statement.writes:
        if write.statement.returning:
            continue
        others = [part for part in parts if part is not write]
        if any(refers_to(part, write.name) for part in (*others, statement.statement)):
            message = f'WITH query "{write.name}" does not have a RETURNING clause'
            raise SqlError("0A000", message, offset=write.offset, hint="Add RETURNING *.")


def _without_returned(planned: PlannedWrite) -> PlannedWrite:
    """Return a write that reads stored relations only, besides the RETURNING rows of other writes."""
    return replace(planned, reads=stored(planned.reads))


def stored(ids: frozenset[int]) -> frozenset[int]:
    """Return identifiers without those of RETURNING rows."""
    return frozenset(identifier for identifier in ids if identifier <= returned_id(_MOST_WRITES))


def reads_of(planned: PlannedWithWrites) -> frozenset[int]:
    """Return the identifiers of the stored relations that the parts read."""
    main = planned.main
    own = main.reads if isinstance(main, PlannedWrite) else stored(ids_of(main.relation))
    return own.union(*(write.reads for write in planned.writes))
