"""Planner of set-returning functions in FROM and in SELECT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from derive.algebra.expression import Call, Column, Expression, Literal
from derive.algebra.relation import Constant, Project, Relation, Unnest
from derive.algebra.rewrite import rewritten, with_columns
from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.registry import builder_of, resolve_cast, resolve_function, unzip_of
from derive.functions.scalar.row_functions import MEMBER_FUNCTIONS, ROW_FUNCTIONS
from derive.functions.types.array import elements_of
from derive.sql.parser.ast import FunctionCall, FunctionTable, RowsFrom, SyntaxNode
from derive.sql.planner.building import columns_of, projected
from derive.sql.planner.coercion import check_path
from derive.sql.planner.interfaces import Expressions, Queries
from derive.sql.planner.output import start_of
from derive.sql.planner.scope import NO_SOURCE, ROWS, Clause, Frame, RowTarget

_FROM = Clause("functions in FROM")
_ONE_ROW = Constant(((),), ())


def rows_of_function(queries: Queries, item: FunctionTable, parent: Frame | None) -> tuple[Relation, tuple[str, ...]]:
    """Return the rows of a function in FROM, and the names of their columns.

    Args:
        queries: planner of queries.
        item: the item of FROM.
        parent: the query that its arguments may refer to.

    Raises:
        SqlError: no function takes these arguments (42883).
    """
    call = item.call
    expressions = queries.expressions(Frame(NO_SOURCE, parent, _FROM))
    name = call.name.name
    names: tuple[str, ...] = (name,)
    if name == "unnest" and call.arguments:
        relation = _side_by_side([array_of_unnest(expressions, node, call.offset) for node in call.arguments])
        names = ("unnest",) * len(call.arguments)
    elif name in MEMBER_FUNCTIONS:
        relation = _side_by_side([array_of_call(expressions, call, f"{name}_{part}[]") for part in ("keys", "values")])
        names = ("key", "value")
    elif name in ROW_FUNCTIONS:
        relation = _elements(array_of_call(expressions, call))
        if (kind := ROW_FUNCTIONS[name].type) is not None:
            element, place = columns_of(relation)
            offset = call.offset
            relation = projected(relation, (expressions.coercion.explicit(element, kind, offset, offset), place))
        names = (ROW_FUNCTIONS[name].column,)
    else:
        relation = Project(_ONE_ROW, (expressions.known(call), Literal(1, Type.BIGINT)))
    if item.alias is not None and len(names) == 1 and names[0] == name:
        names = (item.alias.name,)
    if item.has_ordinality:
        return relation, (*names, "ordinality")
    return projected(relation, columns_of(relation)[:-1]), names


def rows_side_by_side(queries: Queries, item: RowsFrom, parent: Frame | None) -> tuple[Relation, tuple[str, ...]]:
    """Return the rows of several functions side by side, padded with NULLs, and the names of their columns.

    Args:
        queries: planner of queries.
        item: the item of FROM.
        parent: the query that the arguments may refer to.

    Raises:
        SqlError: no function takes these arguments (42883), or no array has their type (0A000).
    """
    expressions = queries.expressions(Frame(NO_SOURCE, parent, _FROM))
    columns = [column for call in item.calls for column in _arrays_of(expressions, call)]
    relation = _side_by_side([array for _, array, _ in columns])
    *elements, place = columns_of(relation)
    shown = [
        element if kind is None else expressions.coercion.explicit(element, kind, item.offset, item.offset)
        for element, (_, _, kind) in zip(elements, columns, strict=True)
    ]
    names = tuple(name for name, _, _ in columns)
    if item.has_ordinality:
        return projected(relation, (*shown, place)), (*names, "ordinality")
    return projected(relation, shown), names


def _arrays_of(expressions: Expressions, call: FunctionCall) -> list[tuple[str, Expression, Type | None]]:
    """Return each column of a function: its name, the array of its rows, and the type of which these are texts."""
    name = call.name.name
    if name == "unnest" and call.arguments:
        return [(name, array_of_unnest(expressions, node, call.offset), None) for node in call.arguments]
    if name in MEMBER_FUNCTIONS:
        parts = (("key", "keys"), ("value", "values"))
        return [(column, array_of_call(expressions, call, f"{name}_{part}[]"), None) for column, part in parts]
    if name in ROW_FUNCTIONS:
        return [(ROW_FUNCTIONS[name].column, array_of_call(expressions, call), ROW_FUNCTIONS[name].type)]
    value = expressions.known(call)
    if value.type.array is None:
        hint = "Call it as another item of FROM."
        message = f"functions that return {value.type.value} are not supported in ROWS FROM"
        raise SqlError("0A000", message, offset=call.offset, hint=hint)
    return [(name, Call(builder_of(value.type), (value,), value.type.array), None)]


def array_of_unnest(expressions: Expressions, node: SyntaxNode, offset: int) -> Expression:
    """Return the array argument of `unnest`.

    Raises:
        SqlError: the argument is no array (42883 or 42725).
    """
    value = expressions.plan(node)
    hint = "Cast it to the type of an array, such as text[]."
    if value.type is Type.UNKNOWN:
        raise SqlError("42725", "function unnest(unknown) is not unique", offset=offset, hint=hint)
    if value.type.element is None:
        raise SqlError("42883", f"function unnest({value.type.value}) does not exist", offset=offset, hint=hint)
    return value


def array_of_call(expressions: Expressions, call: FunctionCall, symbol: str | None = None) -> Expression:
    """Return the array whose elements are the rows of a set-returning function other than `unnest`.

    Args:
        expressions: planner of the arguments.
        call: the call.
        symbol: name of the function that returns the array; None for the function of the call's name.

    Raises:
        SqlError: no function takes these arguments (42883).
    """
    symbol = symbol or ROW_FUNCTIONS[call.name.name].symbol
    values = [expressions.plan(argument) for argument in call.arguments]
    if call.name.name == "generate_subscripts" and values:
        modifier = expressions.frame.modifier_of(values[0])
        symbol = "vector_subscripts[]" if modifier is not None and modifier.is_vector else symbol
    try:
        resolution = resolve_function(symbol, [value.type for value in values], call.offset)
    except SqlError as error:
        listed = ", ".join(value.type.value for value in values)
        message = f"function {call.name}({listed}) does not exist"
        raise SqlError(error.sqlstate, message, offset=call.offset, hint=error.hint) from None
    offsets = [start_of(argument) for argument in call.arguments]
    check_path(call.name.name, values, offsets)
    arguments = expressions.coercion.arguments(values, resolution.argument_types, offsets)
    return expressions.coercion.called(resolution.function, arguments, resolution.result_type)


def _elements(array: Expression) -> Relation:
    """Return the elements of an array, with their positions."""
    element = array.type.element
    if not isinstance(array, Literal) or element is None:
        return Unnest(_ONE_ROW, array)
    data = elements_of(element, array.value) if isinstance(array.value, bytes) else ()
    return Constant(tuple((datum, place) for place, datum in enumerate(data, start=1)), (element, Type.BIGINT))


def _side_by_side(arrays: Sequence[Expression]) -> Relation:
    """Return the elements of several arrays in parallel columns, padded with NULLs, and their positions."""
    if len(arrays) == 1:
        return _elements(arrays[0])
    row, place = Column(0, Type.BYTEA), Column(1, Type.BIGINT)
    return Project(Unnest(_ONE_ROW, zipped(arrays)), (*zipped_elements(arrays, row), place))


def zipped(arrays: Sequence[Expression]) -> Expression:
    """Return one array that has, for each position, the elements of several arrays at this position."""
    parts = []
    for array in arrays:
        part = resolve_function("zip_element[]", (array.type,))
        parts.append(Call(part.function, (array,), part.result_type))
    return Call("zip_arrays", tuple(parts), Type.BYTEA_ARRAY)


def zipped_elements(arrays: Sequence[Expression], row: Expression) -> tuple[Expression, ...]:
    """Return the element of each array from an element of `zipped`; NULL after the end of the array."""
    elements = []
    for index, array in enumerate(arrays):
        kind = array.type.element
        assert kind is not None
        elements.append(Call(unzip_of(kind), (row, Literal(index, Type.INTEGER)), kind))
    return tuple(elements)


def is_row_function(name: str) -> bool:
    """Return whether a function returns rows."""
    return name in ROW_FUNCTIONS or name == "unnest"


def row_target(expressions: Expressions, node: FunctionCall) -> Expression:
    """Return the placeholder column of a set-returning function.

    Raises:
        SqlError: 0A000, the clause or expression allows no set-returning function; 42883, the function does not exist.
    """
    frame, name = expressions.frame, node.name.name
    if not frame.clause.has_rows:
        raise _refusal(frame.clause, node.offset)
    before = len(frame.rows)
    if name == "unnest":
        if len(node.arguments) != 1:
            hint = "Write an unnest of several arrays in FROM."
            raise SqlError("42883", "function unnest takes one argument here", offset=node.offset, hint=hint)
        array = array_of_unnest(expressions, node.arguments[0], node.offset)
    else:
        array = array_of_call(expressions, node)
    if len(frame.rows) > before:
        hint = "Move the inner call to FROM."
        raise SqlError("0A000", "nested set-returning functions are not supported", offset=node.offset, hint=hint)
    assert array.type.element is not None
    kind = ROW_FUNCTIONS[name].type if name in ROW_FUNCTIONS else None
    target = RowTarget(array, kind or array.type.element, node.offset)
    frame.rows.append(target)
    # Equal calls share a column, so that ORDER BY and GROUP BY may repeat a selected call.
    index = next(at for at, other in enumerate(frame.rows) if (other.array, other.type) == (array, target.type))
    return Column(ROWS + index, target.type)


def _refusal(clause: Clause, offset: int) -> SqlError:
    if clause.is_aggregate:
        message = "aggregate function calls cannot contain set-returning function calls"
    elif clause.name == "functions in FROM":
        message = "set-returning functions must appear at top level of FROM"
    else:
        message = f"set-returning functions are not allowed in {clause.name}"
    hint = "You might be able to move the set-returning function into a LATERAL FROM item."
    return SqlError("0A000", message, offset=offset, hint=hint)


def check_no_rows(frame: Frame, before: int, construct: str) -> None:
    """Check that no set-returning function was planned after the first `before` functions.

    Raises:
        SqlError: a set-returning function was planned (0A000).
    """
    if len(frame.rows) > before:
        raise _refusal(Clause(construct), frame.rows[before].offset)


def rows_within(expressions: Sequence[Expression]) -> list[int]:
    """Return the indexes of the set-returning functions in expressions, in order."""
    indexes: dict[int, None] = {}

    def note(part: Expression, depth: int) -> Expression | None:
        if depth == 0 and isinstance(part, Column) and part.index >= ROWS:
            indexes[part.index - ROWS] = None
        return None

    for expression in expressions:
        rewritten(expression, note)
    return list(indexes)


def with_rows(relation: Relation, frame: Frame, indexes: Sequence[int]) -> tuple[Relation, Mapping[int, Expression]]:
    """Return the rows of a relation, repeated for each row of set-returning functions.

    Args:
        relation: the relation, whose columns come first.
        frame: the query.
        indexes: indexes of the functions, at least one.

    Returns:
        The relation, and by index the expression that replaces each function.
    """
    targets = [frame.rows[index] for index in indexes]
    width = len(relation.types)
    if len(targets) == 1:
        element = targets[0].array.type.element
        assert element is not None
        relation = Unnest(relation, targets[0].array)
        return relation, {indexes[0]: _value(Column(width, element), targets[0])}
    arrays = tuple(target.array for target in targets)
    elements = zip(indexes, zipped_elements(arrays, Column(width, Type.BYTEA)), targets, strict=True)
    return Unnest(relation, zipped(arrays)), {index: _value(element, target) for index, element, target in elements}


def replaced_rows(expression: Expression, values: Mapping[int, Expression]) -> Expression:
    """Return an expression with values in place of set-returning functions."""

    def value(column: Column) -> Expression:
        return values.get(column.index - ROWS, column) if column.index >= ROWS else column

    return with_columns(expression, value)


def _value(element: Expression, target: RowTarget) -> Expression:
    """Return an element as a value of the function's type; text elements are cast."""
    if element.type is target.type:
        return element
    name = resolve_cast(element.type, target.type, "explicit")
    assert name
    return Call(name, (element,), target.type)
