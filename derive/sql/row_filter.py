"""A condition of SQL over the documents of one collection, outside of queries."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence

from derive.algebra.expression import Column
from derive.algebra.relation import Finishing, Get, GlobalId, Relation
from derive.algebra.rewrite import mentions
from derive.algebra.types import Row, Type
from derive.compute.oneshot import at_time, evaluate
from derive.errors import SqlError
from derive.protocol.specs import CollectionSpec, Document
from derive.relations.columns import columns_of, compile_rows
from derive.sql.parser.parse import parse_expression, too_complex
from derive.sql.planner.building import filtered, has_subquery
from derive.sql.planner.coercion import ParameterTypes
from derive.sql.planner.dependencies import needs_context, require_small
from derive.sql.planner.expressions import ExpressionPlanner
from derive.sql.planner.output import start_of
from derive.sql.planner.planned import PlannedQuery, bind, is_of_session
from derive.sql.planner.queries import QueryPlanner
from derive.sql.planner.row_expressions import NoNames
from derive.sql.planner.scope import WHERE, Frame, Source, VisibleColumn, VisibleTable


class DocumentFilter:
    """Finds the documents of a collection for which a condition is true.

    The columns and types of the collection are the same as in SQL. `now()` is the time of the construction.

    Args:
        spec: the collection.
        text: the condition, an expression of SQL without subqueries.

    Raises:
        SqlError: the condition is invalid; the offset shows the cause.
    """

    def __init__(self, spec: CollectionSpec, text: str) -> None:
        self._columns = columns_of(spec)
        self._place = len(self._columns)  # index of the column with the documents' numbers
        self._relation = self._plan(spec.name, text)

    def indices(self, documents: Sequence[Document], clocks: Sequence[int]) -> list[int]:
        """Return the indices of the documents for which the condition is true, in ascending order.

        Args:
            documents: parsed documents.
            clocks: their timestamps, microseconds.

        Raises:
            SqlError: the evaluation failed, or a document has a value that its column cannot hold.
        """

        def contents(_: GlobalId, requested: Collection[int]) -> Iterator[list[Row]]:
            rows = compile_rows(self._columns, requested)(documents, clocks)
            yield [(*row, number) for number, row in enumerate(rows)]

        batches = evaluate(self._relation, Finishing((), None, 0, (self._place,)), contents)
        return sorted(int(row[0]) for rows in batches for row in rows if isinstance(row[0], int))

    def _plan(self, name: str, text: str) -> Relation:
        """Return the documents for which the condition is true, with their numbers as the last column."""
        get = Get(1, (*(column.type for column in self._columns), Type.BIGINT))
        visible = tuple(
            VisibleColumn(column.name, Column(index, column.type)) for index, column in enumerate(self._columns)
        )
        frame = Frame(Source(get, (VisibleTable(name, None, visible),), visible), None, WHERE)
        parameters = ParameterTypes()
        try:
            node = parse_expression(text)
            condition = ExpressionPlanner(QueryPlanner(NoNames(), parameters), frame).boolean(node, "WHERE")
        except RecursionError:
            raise too_complex() from None
        if has_subquery(condition):
            raise SqlError("0A000", "the condition cannot have a subquery", offset=start_of(node), hint=_QUERY)
        if parameters.finish():
            raise SqlError(
                "42P02", "the condition cannot have parameters", offset=start_of(node), hint="Write the values."
            )
        relation = filtered(get, condition)
        require_small(relation)
        if needs_context(relation):
            raise SqlError(
                "0A000", "the condition cannot call functions of a session", offset=start_of(node), hint=_QUERY
            )
        query = PlannedQuery(relation, Finishing((), None, 0, ()), (), is_of_session=mentions(relation, is_of_session))
        return at_time(bind(query, ()).relation, time.time_ns() // 1000)


_QUERY = "Run a query with: flowctl sql -c 'SELECT …'"
