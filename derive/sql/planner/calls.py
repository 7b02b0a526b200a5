"""Planner of calls: functions, aggregates, ordered-set aggregates and window functions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from derive.algebra.expression import Call, Case, Column, Expression, Literal, OuterColumn, Parameter
from derive.algebra.relation import Aggregate, Order, WindowFunction
from derive.algebra.rewrite import Replacement, deepened, rewritten, rewritten_aggregate, walk
from derive.algebra.types import Type
from derive.errors import SqlError, suggest
from derive.functions.aggregates.aggregate_functions import ORDERED_SETS
from derive.functions.aggregates.library import is_aggregate, is_window_function
from derive.functions.aggregates.regression import NAMES as REGRESSIONS
from derive.functions.function import word_of
from derive.functions.registry import function_named, resolve_aggregate, resolve_function, resolve_window
from derive.functions.resolve import ambiguous_function
from derive.functions.scalar.catalog import TYPE_OF
from derive.functions.scalar.logic import has_equal_data
from derive.functions.scalar.periods import OVERLAPS
from derive.functions.scalar.row_functions import EXPANDED
from derive.functions.types.pg_type import UNKNOWN_OID, oid_of
from derive.sql.parser.ast import (
    FunctionCall,
    ParameterReference,
    SyntaxNode,
)
from derive.sql.planner.arrays import check_no_vector
from derive.sql.planner.coercion import check_path, located
from derive.sql.planner.equal_values import compared, is_padded, of_one_type, with_spaces
from derive.sql.planner.interfaces import Expressions, NamedFunction
from derive.sql.planner.output import orders_of, start_of
from derive.sql.planner.planned import is_of_session
from derive.sql.planner.scope import AGGREGATES, GROUPINGS, WINDOWS, Clause, Frame
from derive.sql.planner.set_returning import check_no_rows, is_row_function, row_target
from derive.sql.planner.windows import WindowPlanner, check_choice


def _check_ordered_set(node: FunctionCall) -> None:
    """Check the form of a call of an ordered-set aggregate.

    Raises:
        SqlError: the aggregate does not exist (42883), or it is in a window (0A000).
    """
    name = node.name.name
    if name not in ORDERED_SETS:
        hint = f"Aggregates with WITHIN GROUP are {', '.join(ORDERED_SETS)}."
        message = f"function {name} does not exist for values WITHIN GROUP"
        raise SqlError("42883", message, offset=node.offset, hint=hint)
    if not node.is_within_group:
        hint = f"Write {name}(…) WITHIN GROUP (ORDER BY …)."
        raise SqlError("42883", f"WITHIN GROUP is required for {name}", offset=node.offset, hint=hint)
    if node.over is not None:
        raise SqlError(
            "0A000",
            f"OVER is not supported for ordered-set aggregate {name}",
            offset=node.offset,
            hint="Call the function in a subquery with GROUP BY, and join its rows.",
        )
    if len(node.arguments) != ORDERED_SETS[name] or len(node.order) != 1:
        message = f"function {name} does not exist for this number of arguments"
        raise SqlError("42883", message, offset=node.offset, hint="Write one expression after ORDER BY.")


def _ordered_set(expressions: Expressions, node: FunctionCall, fractions: list[Expression]) -> Aggregate:
    """Plan an ordered-set aggregate with its direct arguments."""
    name = node.name.name
    (order,) = orders_of(node.order, expressions)
    value, kind = order.expression, order.expression.type
    has_array = any(fraction.type is Type.DOUBLE_ARRAY for fraction in fractions)
    if name == "percentile_cont" and kind is Type.INTERVAL:
        name = "percentile_cont_interval"
    elif name == "percentile_cont":
        kind = Type.DOUBLE
        as_double = expressions.coercion.cast(value, kind, start_of(node.order[0].expression))
        if as_double is None:
            what = f"percentiles of {value.type.value} are not supported"
            raise SqlError("42883", what, offset=node.offset)
        value = as_double
    if has_array:
        array = kind.array
        if array is None:
            what = f"arrays of percentiles of {kind.value} are not supported"
            raise SqlError("0A000", what, offset=node.offset, hint="Call the function for each fraction.")
        is_between = name.startswith("percentile_cont")
        name, kind = f"{name}_array" if is_between else f"{name}_{word_of(kind)}", array
    condition = expressions.boolean(node.condition, "FILTER") if node.condition else None
    return Aggregate(name, (value, *fractions), kind, False, condition, (replace(order, expression=value),))


def _fraction(expressions: Expressions, argument: SyntaxNode, node: FunctionCall) -> Expression:
    value = expressions.plan(argument)
    kind = Type.DOUBLE_ARRAY if value.type.element else Type.DOUBLE
    cast = expressions.coercion.cast(value, kind, start_of(argument))
    if cast is None:
        hint = "A percentile is a number from 0 to 1."
        raise SqlError("42883", f"function {node.name.name} takes no {value.type.value}", offset=node.offset, hint=hint)
    return cast


_ALIKE = frozenset({"coalesce", "greatest", "least"})
_KEYWORDS = {
    "current_timestamp": Type.TIMESTAMPTZ,
    "localtimestamp": Type.TIMESTAMP,
    "current_date": Type.DATE,
    "localtime": Type.TIME,
    "current_time": Type.TIMETZ,
}
_CASTS = {
    "bool": Type.BOOLEAN,
    "int2": Type.SMALLINT,
    "int4": Type.INTEGER,
    "int8": Type.BIGINT,
    "float4": Type.REAL,
    "float8": Type.DOUBLE,
    "text": Type.TEXT,
    "date": Type.DATE,
    "timestamptz": Type.TIMESTAMPTZ,
    "jsonb": Type.JSONB,
    "uuid": Type.UUID,
}
"""Types whose names may be called like functions."""
_MOST_GROUPING = 31
_COMPARED = (
    frozenset({Type.SMALLINT, Type.INTEGER, Type.BIGINT}),
    frozenset({Type.REAL, Type.DOUBLE}),
    frozenset({Type.DATE, Type.TIMESTAMP, Type.TIMESTAMPTZ}),
    frozenset({Type.TEXT, Type.UNKNOWN}),
)
"""Types between which PostgreSQL has an operator `=`."""
_OF_OTHER_ROWS = frozenset({"lag", "lead"})
_IGNORING_NULL = frozenset(
    ["count", "sum", "avg", "min", "max", "bool_and", "bool_or", "every", "string_agg", "stddev", "variance"]
) | frozenset(REGRESSIONS)


_TEXTS = frozenset({"concat", "concat_ws", "format"})
"""Functions that make a text of arguments of any types."""
_OF_ANY = frozenset(
    f"{prefix}{name}"
    for prefix in ("json_", "jsonb_")
    for name in (
        *("build_object", "build_array", "agg", "object_agg", "agg_strict", "array[strict]"),
        *("object[]", "object[strict]", "object[unique]", "object[unique strict]"),
        *("object_agg_strict", "object_agg_unique", "object_agg_unique_strict"),
    )
) | {"concat", "concat_ws", "format", "to_json", "to_jsonb", "array_agg", "octet_length", "bit_length"}
"""Functions whose arguments keep the spaces of `character(n)`, because they do not become texts."""


class CallPlanner:
    """Planner of the calls in one query."""

    def __init__(self, expressions: Expressions) -> None:
        self._expressions = expressions
        self._coercion = expressions.coercion
        self._windows = WindowPlanner(expressions)

    def plan(self, node: FunctionCall) -> Expression:
        """Plan a call."""
        name = node.name.name
        if node.name.schema not in {None, "pg_catalog"} and str(node.name) != f"information_schema.{EXPANDED}":
            own = self._own_function(node, [self._expressions.plan(argument) for argument in node.arguments])
            if own is not None:
                return own
            message = f"function {node.name} does not exist"
            raise SqlError("42883", message, offset=node.offset, hint="Functions are in no schema but pg_catalog.")
        if node.is_within_group or name in ORDERED_SETS:
            return self._ordered_set(node)
        if name == "grouping" and node.name.schema is None:
            return self._grouping(node)
        if node.over is not None:
            return self._window_function(node)
        if is_aggregate(name) and not node.is_special:
            return self._aggregate(node)
        if is_window_function(name) or name in _OF_OTHER_ROWS:
            raise SqlError("42809", f"window function {name} requires an OVER clause", offset=node.offset)
        return self._function(node)

    def _merge_action(self, node: FunctionCall) -> Expression:
        for depth, frame in self._expressions.frame.frames():
            if frame.merge_action is not None:
                return deepened(frame.merge_action, depth)
        message = "MERGE_ACTION() can only be used in the RETURNING list of a MERGE command"
        raise SqlError("42601", message, offset=node.offset)

    def _function(self, node: FunctionCall) -> Expression:
        name = node.name.name
        for is_there, what in (
            (node.is_distinct, "DISTINCT"),
            (node.order, "ORDER BY"),
            (node.condition, "FILTER"),
        ):
            if is_there:
                message = f"{what} specified, but {name} is not an aggregate function"
                raise SqlError("42809", message, offset=node.offset)
        if node.is_star:
            hint = "Did you mean count?" if suggest(name, ("count",)) else None
            raise SqlError("42883", f"function {name}() does not exist", offset=node.offset, hint=hint)
        if is_row_function(name) and not node.is_special:
            return row_target(self._expressions, node)
        if name == "merge_action" and not node.arguments:
            return self._merge_action(node)
        rows = len(self._expressions.frame.rows)
        values = [self._expressions.plan(argument) for argument in node.arguments]
        offsets = [start_of(argument) for argument in node.arguments]
        if name in _OF_ANY:
            values = [with_spaces(value, self._expressions.frame) for value in values]
        if name in _ALIKE:
            check_no_rows(self._expressions.frame, rows, name.upper())
            alike = self._coercion.alike(of_one_type(values, self._expressions), offsets, name.upper())
            return Call(name, alike, alike[0].type)
        special = self._special(name, values, node)
        return self._resolved(node, values, offsets) if special is None else special

    def _resolved(self, node: FunctionCall, values: list[Expression], offsets: list[int]) -> Expression:
        """Plan the call of a function that the types of the arguments determine."""
        name = node.name.name
        try:
            resolution = resolve_function(name, [value.type for value in values], node.offset)
        except SqlError as error:
            own = self._own_function(node, values) if error.sqlstate == "42883" else None
            if own is None:
                raise
            return own
        check_path(name, values, offsets)
        arguments = self._coercion.arguments(values, resolution.argument_types, offsets)
        if name == "nullif" and (
            values[0].type not in {Type.UNKNOWN, resolution.result_type}
            or not has_equal_data(resolution.result_type)
            or (values[0].type is Type.TEXT and is_padded(self._expressions.frame.modifier_of(values[0])))
        ):
            # The result has the type of the first operand of `=`; our operators cast where PostgreSQL's mix types.
            equality = self._expressions.operation("=", values, offsets, node.offset)
            is_mixed = any({value.type for value in values} <= kinds for kinds in _COMPARED)
            first = values[0] if is_mixed else arguments[0]
            return Case(((equality, Literal(None, first.type)),), first, first.type)
        if name in _TEXTS and self._coercion.zone is not None:
            arguments = tuple(self._coercion.shown(argument) for argument in arguments)
        return self._coercion.called(resolution.function, arguments, resolution.result_type)

    def _own_function(self, node: FunctionCall, values: Sequence[Expression]) -> Expression | None:
        """Return the value of a function that CREATE FUNCTION has made; None if there is none for these values."""
        name = node.name
        if node.is_special or node.over is not None:
            return None
        try:
            types = [value.type for value in values]
            function = self._expressions.queries.names.function(name.schema, name.name, types)
        except SqlError as error:
            raise located(error, node.offset) from None
        if function is None:
            return None
        clause = self._expressions.frame.clause
        if not clause.has_own_functions:
            message = f"functions of CREATE FUNCTION are not supported in {clause.name}"
            raise SqlError("0A000", message, offset=node.offset, hint="Write the expression of the function.")
        offsets = [start_of(argument) for argument in node.arguments]
        arguments = self._coercion.arguments(values, [kind for _, kind in function.arguments], offsets)
        return inlined(function, [self._plain(argument) for argument in arguments], node.offset)

    def _plain(self, value: Expression) -> Expression:
        """Return an argument of a function in SQL: a text has no length, which the body would show as spaces."""
        is_modified = value.type is Type.TEXT and self._expressions.frame.modifier_of(value) is not None
        return Call("plain_text_text", (value,), Type.TEXT) if is_modified else value

    def _special(  # noqa: PLR0911 (one for each kind)
        self, name: str, values: list[Expression], node: FunctionCall
    ) -> Expression | None:
        """Return a keyword's value, `pg_typeof`, or the cast that a call like `date(x)` means; None for other calls."""
        if name in _KEYWORDS:
            return self._keyword(node)
        if name == TYPE_OF and len(values) == 1:
            return self._type_of(values[0])
        if node.is_special:
            return self._construct(name, values, node)
        kind = _CASTS.get(name)
        if kind is None or len(values) != 1:
            return None
        value = values[0]
        try:
            if value.type is not Type.UNKNOWN and resolve_function(name, [value.type]):
                return None
        except SqlError:
            pass  # No function has the name, but a type has.
        try:
            return self._coercion.explicit(value, kind, node.offset, start_of(node.arguments[0]))
        except SqlError as error:
            if error.sqlstate == "42846":
                return None
            raise

    def _construct(self, name: str, values: Sequence[Expression], node: FunctionCall) -> Expression | None:
        """Return the value of `OVERLAPS` and `AT LOCAL`; None for other constructs."""
        if name == OVERLAPS:
            return self._overlaps(values, node)
        if name == "timezone" and len(values) == 1:
            zone = Literal(self._coercion.zone or "UTC", Type.TEXT)
            return self._resolved(node, [zone, *values], [node.offset, start_of(node.arguments[0])])
        return None

    def _overlaps(self, values: Sequence[Expression], node: FunctionCall) -> Expression:
        """Plan `OVERLAPS`; a period whose second value is an interval ends that much after its begin."""
        offsets = [start_of(argument) for argument in node.arguments]
        types = [value.type for value in values]
        if {types[1], types[3]} == {Type.INTERVAL, Type.UNKNOWN} or set(types) == {Type.UNKNOWN}:
            raise ambiguous_function(OVERLAPS, types, node.offset)
        instants = [types[at - at % 2] if kind is Type.INTERVAL else kind for at, kind in enumerate(types)]
        try:
            resolution = resolve_function(OVERLAPS, instants, node.offset)
        except SqlError as error:
            message = f"function overlaps({', '.join(kind.value for kind in types)}) does not exist"
            raise SqlError(error.sqlstate, message, offset=node.offset, hint=error.hint) from None
        begins = [self._coercion.cast(values[at], resolution.argument_types[at], offsets[at]) for at in (0, 2)]
        ends = [
            self._expressions.operation("+", [begin or value, value], [at, at], node.offset)
            if value.type is Type.INTERVAL
            else value
            for begin, value, at in zip(begins, values[1::2], offsets[1::2], strict=True)
        ]
        instants_of_both = [values[0], ends[0], values[2], ends[1]]
        arguments = self._coercion.arguments(instants_of_both, resolution.argument_types, offsets)
        return self._coercion.called(resolution.function, arguments, resolution.result_type)

    def _type_of(self, value: Expression) -> Expression:
        """Return the type of a value as clients receive it; the value itself is evaluated for its errors."""
        oid = UNKNOWN_OID
        if value.type is not Type.UNKNOWN:
            oid = oid_of(value.type, self._expressions.frame.modifier_of(value))
        else:
            value = replace(value, type=Type.TEXT) if isinstance(value, Literal) else value
        return Call(TYPE_OF, (value, Literal(oid, Type.REGTYPE)), Type.REGTYPE)

    def _keyword(self, node: FunctionCall) -> Expression:
        """Plan `CURRENT_DATE` and similar keywords: the time of the transaction, cast to the type of the keyword."""
        now = resolve_function("now", (), node.offset)
        value = Call(now.function, (), now.result_type)
        return self._coercion.explicit(value, _KEYWORDS[node.name.name], node.offset, node.offset)

    @contextmanager
    def _inside(self, clause: Clause) -> Iterator[Frame]:
        frame = self._expressions.frame
        outside, references = frame.clause, list(frame.references)
        frame.clause = clause
        try:
            yield frame
        finally:
            frame.clause = outside
            frame.references[:] = references

    def _aggregate(self, node: FunctionCall) -> Expression:
        with self._inside(Clause("aggregate", is_aggregate=True)):
            arguments, aggregate_function, kind = self._arguments(node)
            condition = self._expressions.boolean(node.condition, "FILTER") if node.condition else None
            order = self._order(node, arguments)
        return self._noted(Aggregate(aggregate_function, arguments, kind, node.is_distinct, condition, order), node)

    def _ordered_set(self, node: FunctionCall) -> Expression:
        """Plan an ordered-set aggregate with its WITHIN GROUP."""
        _check_ordered_set(node)
        with self._inside(Clause("aggregate", is_aggregate=True)) as frame:
            begin = len(frame.references)
            fractions = [_fraction(self._expressions, argument, node) for argument in node.arguments]
            references = frame.references[begin:]
            aggregate = _ordered_set(self._expressions, node, fractions)
        frame.references += references
        if _level_of(aggregate) < _level_of(replace(aggregate, arguments=aggregate.arguments[:1])):
            message = "outer-level aggregate cannot contain a lower-level variable in its direct arguments"
            raise SqlError("42803", message, offset=node.offset)
        return self._noted(aggregate, node)

    def _noted(self, aggregate: Aggregate, node: FunctionCall) -> Expression:
        """Return the placeholder column that stands for an aggregate until the groups of its query are known."""
        kind = aggregate.type
        depth = _level_of(aggregate)
        frame = next(frame for at, frame in self._expressions.frame.frames() if at == depth)
        self._check(frame, node)
        if depth:
            aggregate = rewritten_aggregate(aggregate, _raised(depth))
        if aggregate not in frame.aggregates:
            frame.aggregates.append(aggregate)
        index = AGGREGATES + frame.aggregates.index(aggregate)
        return OuterColumn(depth, index, kind) if depth else Column(index, kind)

    def _grouping(self, node: FunctionCall) -> Expression:
        """Plan `GROUPING(…)`: one bit per argument; the bit is 1 if the row is not grouped by the argument."""
        frame = self._expressions.frame
        if not frame.clause.has_aggregates:
            message = f"grouping operations are not allowed in {frame.clause.name}"
            raise SqlError("42803", message, offset=node.offset)
        if len(node.arguments) > _MOST_GROUPING:
            raise SqlError("54023", "GROUPING must have fewer than 32 arguments", offset=node.offset)
        if not node.arguments:
            raise SqlError("42601", "GROUPING needs an argument", offset=node.offset)
        references = list(frame.references)
        arguments = tuple((self._expressions.known(argument), start_of(argument)) for argument in node.arguments)
        frame.references[:] = references
        frame.groupings.append(arguments)
        return Column(GROUPINGS + len(frame.groupings) - 1, Type.INTEGER)

    @staticmethod
    def _check(frame: Frame, node: FunctionCall) -> None:
        if frame.clause.is_aggregate:
            raise SqlError("42803", "aggregate function calls cannot be nested", offset=node.offset)
        if not frame.clause.has_aggregates:
            message = f"aggregate functions are not allowed in {frame.clause.name}"
            raise SqlError("42803", message, offset=node.offset)

    def _arguments(self, node: FunctionCall) -> tuple[tuple[Expression, ...], str, Type]:
        """Return the cast arguments of an aggregate or window function, its function name, and its result type."""
        name = node.name.name
        if node.is_star and name != "count":
            raise SqlError("42883", f"function {name}() does not exist", offset=node.offset)
        if name == "count" and not node.is_star and not node.arguments:
            message = "count(*) must be used to call a parameterless aggregate function"
            raise SqlError("42809", message, offset=node.offset)
        values = [self._expressions.plan(argument) for argument in node.arguments]
        if name in _OF_ANY:
            values = [with_spaces(value, self._expressions.frame) for value in values]
        types = [value.type for value in values]
        if name == "array_agg" and values:
            check_no_vector(values[0], self._expressions.frame, node.offset)
        if node.over is not None and not (is_aggregate(name) or is_window_function(name) or name in _OF_OTHER_ROWS):
            if not is_row_function(name):
                resolve_function(name, types, node.offset)
            message = f"OVER specified, but {name} is not a window function nor an aggregate function"
            raise SqlError("42809", message, offset=node.offset)
        resolve = resolve_window if node.over is not None else resolve_aggregate
        resolution = resolve(name, types, node.offset)
        offsets = [start_of(argument) for argument in node.arguments]
        arguments = self._coercion.arguments(values, resolution.argument_types, offsets)
        return arguments, resolution.function, resolution.result_type

    def _order(self, node: FunctionCall, arguments: tuple[Expression, ...]) -> tuple[Order, ...]:
        order = orders_of(node.order, self._expressions)
        if node.is_distinct and any(item.expression not in arguments for item in order):
            message = "in an aggregate with DISTINCT, ORDER BY expressions must appear in argument list"
            raise SqlError("42P10", message, offset=node.order[0].offset)
        return order

    def _window_function(self, node: FunctionCall) -> Expression:
        frame = self._expressions.frame
        if frame.clause.is_aggregate:
            message = "aggregate function calls cannot contain window function calls"
            raise SqlError("42803", message, offset=node.offset)
        if not frame.clause.has_windows:
            message = f"window functions are not allowed in {frame.clause.name}"
            raise SqlError("42P20", message, offset=node.offset)
        if node.is_distinct:
            raise SqlError(
                "0A000",
                "DISTINCT is not implemented for window functions",
                offset=node.offset,
                hint="Call the function in a subquery with GROUP BY, and join its rows.",
            )
        if node.order:
            message = "aggregate ORDER BY is not implemented for window functions"
            raise SqlError("0A000", message, offset=node.offset, hint="Write ORDER BY in OVER (…).")
        outside = frame.clause
        frame.clause = replace(outside, name="window definitions", has_windows=False, has_rows=False)
        try:
            arguments, name, kind = self._arguments(node)
            if node.condition is not None:
                arguments = self._filtered(node, arguments)
                name = resolve_window(node.name.name, [argument.type for argument in arguments], node.offset).function
            partition, order, window_frame = self._windows.plan(node)
        finally:
            frame.clause = outside
        partition = tuple(map(compared, partition))
        function = WindowFunction(name, arguments, kind, partition, order, window_frame)
        check_choice(function, node.offset)
        if function not in frame.windows:
            frame.windows.append(function)
        return Column(WINDOWS + frame.windows.index(function), kind)

    def _filtered(self, node: FunctionCall, arguments: tuple[Expression, ...]) -> tuple[Expression, ...]:
        """Return arguments that are NULL where FILTER excludes the row, because the aggregate ignores NULL."""
        name = node.name.name
        if not is_aggregate(name):
            message = "FILTER is not implemented for non-aggregate window functions"
            raise SqlError("0A000", message, offset=node.offset, hint="Select the rows in a subquery.")
        if name not in _IGNORING_NULL or node.condition is None:
            raise SqlError(
                "0A000",
                f"FILTER is not supported for {name} with OVER",
                offset=node.offset,
                hint="Select the rows in a subquery.",
            )
        condition = self._expressions.boolean(node.condition, "FILTER")
        first = arguments[0] if arguments else Literal(1, Type.INTEGER)
        return (Case(((condition, first),), Literal(None, first.type), first.type), *arguments[1:])


def _level_of(aggregate: Aggregate) -> int:
    """Return the depth of the query of an aggregate: the innermost query to which the arguments refer."""
    levels: set[int] = set()

    def note(part: Expression, depth: int) -> Expression | None:
        if isinstance(part, Column) and depth == 0:
            levels.add(0)
        elif isinstance(part, OuterColumn) and part.depth >= depth:
            levels.add(part.depth - depth)
        return None

    rewritten_aggregate(aggregate, note)
    return min(levels, default=0)


def _raised(by: int) -> Replacement:
    """Return a function that converts expressions of a subquery to expressions of a query some levels outside of it."""

    def replacement(part: Expression, depth: int) -> Expression | None:
        if not isinstance(part, OuterColumn) or part.depth < depth + by:
            return None
        if part.depth == by and depth == 0:
            return Column(part.index, part.type)
        return replace(part, depth=part.depth - by)

    return replacement


def changes(expression: Expression) -> bool:
    """Return whether two evaluations of an expression in one statement may have different values."""
    calls = (part for part in walk(expression) if isinstance(part, Call))
    return any(function_named(call.function).is_volatile and not is_of_session(call) for call in calls)


def inlined(function: NamedFunction, arguments: Sequence[Expression], offset: int) -> Expression:
    """Return the expression of a call.

    Args:
        function: the function.
        arguments: arguments of the function's types.
        offset: start of the call.

    Raises:
        SqlError: the body would evaluate a volatile argument several times, or not at all (0A000).
    """
    counts = [0] * len(arguments)

    def replacement(part: Expression, depth: int) -> Expression | None:
        if not isinstance(part, Parameter):
            return None
        counts[part.index] += 1 if depth == 0 else 2
        return replace(deepened(arguments[part.index], depth), type=part.type)

    value = rewritten(function.body, replacement)
    for argument, count in zip(arguments, counts, strict=True):
        if changes(argument) and (count != 1 or function.is_strict):
            message = f"function {function.name} cannot take an argument with changing values, because it is inlined"
            hint = "Compute the argument in a subquery: SELECT f(x) FROM (SELECT random() AS x) s."
            raise SqlError("0A000", message, offset=offset, hint=hint)
    if function.is_strict and arguments:
        missing: Expression = Call("is_null", (arguments[0],), Type.BOOLEAN)
        for argument in arguments[1:]:
            missing = Call("or", (missing, Call("is_null", (argument,), Type.BOOLEAN)), Type.BOOLEAN)
        value = Case(((missing, Literal(None, value.type)),), value, value.type)
    return value


T = TypeVar("T")


def without_outputs(node: T, indexes: Collection[int]) -> T:
    """Return a part of a statement whose function calls lack some parameters as arguments.

    JDBC sends `{? = call f(?)}` as `f($1, $2)`, where `$1` has the type void.

    Args:
        node: the part.
        indexes: indexes of the parameters.
    """

    def kept(part: Any) -> Any:
        if isinstance(part, tuple):
            return tuple(map(kept, part))
        if not is_dataclass(part) or isinstance(part, type):
            return part
        changed = {field.name: kept(getattr(part, field.name)) for field in fields(part)}
        if isinstance(part, FunctionCall):
            changed["arguments"] = tuple(
                argument
                for argument in changed["arguments"]
                if not (isinstance(argument, ParameterReference) and argument.index in indexes)
            )
        return replace(part, **changed)

    result: T = kept(node)
    return result
