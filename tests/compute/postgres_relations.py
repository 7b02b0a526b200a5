"""Relations as queries of a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count

from derive.algebra.expression import Call, Case, Column, Expression, Literal, OuterColumn, Subquery, SubqueryKind
from derive.algebra.relation import (
    Aggregate,
    Bound,
    Constant,
    Distinct,
    Filter,
    FrameUnit,
    Get,
    Join,
    Order,
    OuterJoin,
    Project,
    Recurring,
    Recursion,
    Reduce,
    Relation,
    SetOperation,
    SetOperator,
    Side,
    TopK,
    UnionAll,
    Unnest,
    Window,
    WindowFunction,
)
from derive.algebra.types import Datum, Type
from derive.functions.types.type_info import text_of

SYMBOLS = {
    "equal": "=",
    "differ": "<>",
    "less": "<",
    "at_least": ">=",
    "greater": ">",
    "is_not_distinct": "IS NOT DISTINCT FROM",
    "concatenate": "||",
    "divide": "/",
}
"""Operators, by the first word of the function's name."""
AGGREGATES = {"count": "count", "min": "min", "max": "max", "sum": "sum", "avg": "avg", "string": "string_agg"}


def datum_sql(datum: Datum, kind: Type) -> str:
    """A literal."""
    if datum is None:
        return f"NULL::{kind.value}"
    text = text_of(kind, datum).replace("'", "''")
    return f"'{text}'::{kind.value}"


class PostgresQuery:
    """One query in the making: every relation is a SELECT of its own, whose columns are `c0`, `c1` and so on."""

    def __init__(self, table: Callable[[Get], str]) -> None:
        self._table = table
        self._aliases = count()

    def select(self, relation: Relation, outer: tuple[str, ...] = ()) -> str:  # noqa: PLR0911, PLR0912 - one for each kind
        """A relation as a SELECT."""
        match relation:
            case Recursion() | Recurring():
                raise NotImplementedError("views have none")
            case Get():
                return f"SELECT * FROM {self._table(relation)}"
            case Constant():
                rows = [
                    f"SELECT {self._list(datum_sql(datum, kind) for datum, kind in zip(row, relation.types, strict=True))}"
                    for row in relation.rows
                ]
                none = self._list(f"NULL::{kind.value}" for kind in relation.types)
                return " UNION ALL ".join([*rows, f"SELECT {none} WHERE false"])
            case Project():
                source, alias = self._source(relation.input, outer)
                return f"SELECT {self._list(self._lower(part, alias, outer) for part in relation.expressions)} {source}"
            case Filter():
                source, alias = self._source(relation.input, outer)
                return f"SELECT {alias}.* {source} WHERE {self._lower(relation.predicate, alias, outer)}"
            case Join():
                return self._join(relation, outer)
            case OuterJoin():
                return self._outer_join(relation, outer)
            case Unnest():
                source, alias = self._source(relation.input, outer)
                array = self._lower(relation.array, alias, outer)
                columns = [f"{alias}.c{index}" for index in range(len(relation.input.types))]
                elements = f"unnest({array}) WITH ORDINALITY AS e(v, n)"
                return f"SELECT {self._list([*columns, 'e.v', 'e.n'])} {source}, {elements}"
            case UnionAll():
                return " UNION ALL ".join(f"({self.select(part, outer)})" for part in relation.inputs)
            case Distinct():
                return f"SELECT DISTINCT * {self._source(relation.input, outer)[0]}"
            case SetOperation():
                word = "EXCEPT" if relation.operator is SetOperator.EXCEPT else "INTERSECT"
                both = " ALL" if relation.is_all else ""
                return f"({self.select(relation.left, outer)}) {word}{both} ({self.select(relation.right, outer)})"
            case Reduce():
                return self._reduce(relation, outer)
            case Window():
                source, alias = self._source(relation.input, outer)
                functions = [self._window(function, alias, outer, relation) for function in relation.functions]
                columns = [f"{alias}.c{index}" for index in range(len(relation.input.types))]
                return f"SELECT {self._list([*columns, *functions])} {source}"
            case TopK():
                return self._top(relation, outer)

    def _list(self, texts: Iterable[str]) -> str:
        return ", ".join(f"{text} AS c{index}" for index, text in enumerate(texts))

    def _source(self, relation: Relation, outer: tuple[str, ...]) -> tuple[str, str]:
        alias = f"t{next(self._aliases)}"
        return f"FROM ({self.select(relation, outer)}) AS {alias}", alias

    def _lower(  # noqa: PLR0911 - one for each kind
        self, expression: Expression, alias: str, outer: tuple[str, ...]
    ) -> str:
        match expression:
            case Column(index=index):
                return f"{alias}.c{index}"
            case OuterColumn(depth=depth, index=index):
                return f"{outer[depth - 1]}.c{index}"
            case Literal(value=value, type=kind):
                return datum_sql(value, kind)
            case Call():
                return self._call(
                    expression.function, [self._lower(part, alias, outer) for part in expression.arguments]
                )
            case Case(branches=branches, otherwise=otherwise):
                whens = [
                    f"WHEN {self._lower(condition, alias, outer)} THEN {self._lower(result, alias, outer)}"
                    for condition, result in branches
                ]
                return f"CASE {' '.join(whens)} ELSE {self._lower(otherwise, alias, outer)} END"
            case Subquery(kind=kind, relation=relation, operands=operands):
                inner = self.select(relation, (alias, *outer))
                if kind is SubqueryKind.EXISTS:
                    return f"EXISTS ({inner})"
                if kind is SubqueryKind.SCALAR:
                    return f"({inner})"
                return f"(({', '.join(self._lower(part, alias, outer) for part in operands)}) IN ({inner}))"
        raise AssertionError(expression)

    def _call(self, function: str, arguments: Sequence[str]) -> str:
        if function in {"and", "or"}:
            return "(" + f" {function.upper()} ".join(arguments) + ")"
        if function == "not":
            return f"(NOT {arguments[0]})"
        if function.startswith("array_of_"):
            return f"ARRAY[{', '.join(arguments)}]"
        if function in {"is_null", "is_not_null"}:
            return f"({arguments[0]} {function.replace('_', ' ').upper()})"
        for word, symbol in SYMBOLS.items():
            if function.startswith(f"{word}_"):
                return f"({arguments[0]} {symbol} {arguments[1]})"
        return f"{function.partition('_')[0]}({', '.join(arguments)})"

    def _joined(self, relations: Sequence[Relation], outer: tuple[str, ...]) -> tuple[list[str], str]:
        """Tables, and a query's worth of columns that are side by side, under one name."""
        sources, columns = [], []
        for relation in relations:
            source, alias = self._source(relation, outer)
            sources.append(source.removeprefix("FROM "))
            columns += [f"{alias}.c{index}" for index in range(len(relation.types))]
        return sources, self._list(columns)

    def _join(self, join: Join, outer: tuple[str, ...]) -> str:
        sources, columns = self._joined(join.inputs, outer)
        alias = f"t{next(self._aliases)}"
        predicates = [self._lower(predicate, alias, outer) for predicate in join.predicates]
        crossed = " CROSS JOIN ".join(sources)
        return f"SELECT * FROM (SELECT {columns} FROM {crossed}) AS {alias} WHERE {' AND '.join(predicates) or 'true'}"

    def _outer_join(self, join: OuterJoin, outer: tuple[str, ...]) -> str:
        """By hand: PostgreSQL has no full joins on conditions of every kind."""
        width = len(join.left.types)
        numbered = [
            f"SELECT row_number() OVER () AS n, * FROM ({self.select(relation, outer)}) AS q{next(self._aliases)}"
            for relation in (join.left, join.right)
        ]
        alias = f"t{next(self._aliases)}"
        left = [f"l.c{index} AS c{index}" for index in range(width)]
        right = [f"r.c{index} AS c{width + index}" for index in range(len(join.right.types))]
        pairs = f"SELECT l.n AS ln, r.n AS rn, {', '.join(left + right)} FROM l CROSS JOIN r"
        columns = ", ".join(f"c{index}" for index in range(len(join.types)))
        parts = [f"SELECT {columns} FROM m"]
        no_left = [f"NULL::{kind.value}" for kind in join.left.types]
        no_right = [f"NULL::{kind.value}" for kind in join.right.types]
        if join.side is not Side.RIGHT:
            kept = ", ".join([f"l.c{index}" for index in range(width)] + no_right)
            parts.append(f"SELECT {kept} FROM l WHERE l.n NOT IN (SELECT ln FROM m)")
        if join.side is not Side.LEFT:
            kept = ", ".join(no_left + [f"r.c{index}" for index in range(len(join.right.types))])
            parts.append(f"SELECT {kept} FROM r WHERE r.n NOT IN (SELECT rn FROM m)")
        predicate = self._lower(join.predicate, alias, outer)
        matches = f"SELECT * FROM ({pairs}) AS {alias} WHERE {predicate}"
        together = f"WITH l AS ({numbered[0]}), r AS ({numbered[1]}), m AS ({matches}) {' UNION ALL '.join(parts)}"
        return f"SELECT * FROM ({together}) AS q{next(self._aliases)}"

    def _reduce(self, reduction: Reduce, outer: tuple[str, ...]) -> str:
        source, alias = self._source(reduction.input, outer)
        keys = [self._lower(key, alias, outer) for key in reduction.keys]
        values = [self._aggregate(aggregate, alias, outer) for aggregate in reduction.aggregates]
        grouping = f" GROUP BY {', '.join(str(index + 1) for index in range(len(keys)))}" if keys else ""
        return f"SELECT {self._list([*keys, *values])} {source}{grouping}"

    def _aggregate(self, aggregate: Aggregate, alias: str, outer: tuple[str, ...]) -> str:
        arguments = [self._lower(part, alias, outer) for part in aggregate.arguments]
        name = AGGREGATES[aggregate.function.partition("_")[0]]
        order = [self._order(part, alias, outer) for part in aggregate.order]
        if name == "string_agg":
            order += arguments
        ordered = f" ORDER BY {', '.join(order)}" if order else ""
        distinct = "DISTINCT " if aggregate.is_distinct else ""
        condition = aggregate.condition
        filtered = f" FILTER (WHERE {self._lower(condition, alias, outer)})" if condition is not None else ""
        return f"{name}({distinct}{', '.join(arguments) or '*'}{ordered}){filtered}"

    def _order(self, order: Order, alias: str, outer: tuple[str, ...]) -> str:
        direction = "DESC" if order.is_descending else "ASC"
        nulls = "FIRST" if order.nulls_first else "LAST"
        return f"{self._lower(order.expression, alias, outer)} {direction} NULLS {nulls}"

    def _ties(self, alias: str, width: int) -> list[str]:
        return [f"{alias}.c{index} ASC NULLS FIRST" for index in range(width)]

    def _window(self, function: WindowFunction, alias: str, outer: tuple[str, ...], window: Window) -> str:
        name = AGGREGATES.get(function.function.partition("_")[0], function.function)
        arguments = ", ".join(self._lower(part, alias, outer) for part in function.arguments)
        order = [self._order(part, alias, outer) for part in function.order]
        frame = ""
        has_ties = function.function in {"row_number", "lag", "first_value"}
        if function.frame is not None:
            has_ties = function.frame.unit is FrameUnit.ROWS
            begin, end = self._bound(function.frame.begin), self._bound(function.frame.end)
            frame = f" {function.frame.unit.value.upper()} BETWEEN {begin} AND {end}"
            if function.frame.exclusion is not None:
                frame += f" EXCLUDE {function.frame.exclusion.value.upper()}"
        partition = [self._lower(key, alias, outer) for key in function.partition]
        if function.function == "last_value":
            partition += [self._lower(part.expression, alias, outer) for part in function.order]
            order = self._ties(alias, len(window.input.types))
            frame = " ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
        elif has_ties:
            order += self._ties(alias, len(window.input.types))
        by = f"PARTITION BY {', '.join(partition)} " if partition else ""
        sorting = f"ORDER BY {', '.join(order)}" if order else ""
        return f"{name}({arguments}) OVER ({by}{sorting}{frame})"

    def _bound(self, bound: Bound) -> str:
        assert bound.offset is not None
        return "CURRENT ROW" if bound.offset == 0 else f"{abs(bound.offset)} PRECEDING"

    def _top(self, top: TopK, outer: tuple[str, ...]) -> str:
        source, alias = self._source(top.input, outer)
        order = [self._order(part, alias, outer) for part in top.order] + self._ties(alias, len(top.types))
        partition = f"PARTITION BY {', '.join(self._lower(key, alias, outer) for key in top.keys)} " if top.keys else ""
        number = f"row_number() OVER ({partition}ORDER BY {', '.join(order)}) AS n"
        columns = ", ".join(f"c{index}" for index in range(len(top.types)))
        assert top.limit is not None
        until = top.offset + top.limit
        numbered = f"SELECT {alias}.*, {number} {source}"
        return f"SELECT {columns} FROM ({numbered}) AS q{next(self._aliases)} WHERE n > {top.offset} AND n <= {until}"
