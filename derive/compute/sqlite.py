"""SQLite as the engine of queries: connections with the functions of SQL, and the lowering of relations to SELECT.

As far as possible, filters, projections and joins become one SELECT. Other relations are subqueries in the FROM clause,
which SQLite's planner can flatten. A predicate that can fail is evaluated only for rows for which the infallible
predicates beside it are true, even if SQLite moves the predicate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from types import TracebackType
from typing import Any, TypeAlias

import apsw

from derive.algebra.expression import Column, Expression, OuterColumn, Parameter, Subquery, SubqueryKind
from derive.algebra.relation import (
    Aggregate,
    Bound,
    Constant,
    Distinct,
    Filter,
    Finishing,
    Frame,
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
from derive.algebra.rewrite import columns_read, conjuncts, has_subquery, is_atomic
from derive.algebra.types import Datum, Row
from derive.errors import BusyError, FlowError, SqlError, StorageError
from derive.functions.registry import (
    aggregate_sql,
    can_fail,
    elements_sql,
    is_volatile,
    register,
    sort_key,
    sql_of,
    sql_of_datum,
)
from derive.functions.statement_context import cancellation

MOST_BYTES = 1 << 27
"""Maximum bytes of a value, and of a row."""
_ENDED = ("cannot rollback", "no such savepoint")
"""Messages of SQLite on the rollback of a transaction that SQLite has already ended, for example after a full disk."""
_CACHE_KILOBYTES = 65_536
"""Maximum memory for sorting and temporary tables; larger data go to files."""


def connect(path: str, flags: int = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE) -> apsw.Connection:
    """Open a connection with the SQL functions.

    Args:
        path: path of the database; empty for a temporary one, which is on disk only if it is large.
        flags: SQLite's open flags.
    """
    connection = apsw.Connection(path, flags)
    connection.set_busy_timeout(60_000)
    connection.limit(apsw.SQLITE_LIMIT_LENGTH, MOST_BYTES)
    connection.pragma("temp_store", "file")
    connection.execute(
        f"PRAGMA cache_size=-{_CACHE_KILOBYTES}; PRAGMA temp.cache_size=-{_CACHE_KILOBYTES};"
        "PRAGMA temp.journal_mode=MEMORY"
    ).fetchall()
    register(connection)
    connection.create_scalar_function(ONE_ROW, _one_row, 2, deterministic=True)
    return connection


def _one_row(*arguments: Any) -> Datum:
    rows, value = arguments
    if rows > 1:
        raise SqlError("21000", "more than one row returned by a subquery used as an expression")
    datum: Datum = value
    return datum


class _Translation:
    """The context manager of `translated`. One stateless object serves all calls, because lookups enter it often."""

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, apsw.Error) and (ours := sqlite_error(error)) is not None:
            raise ours from error


_TRANSLATION = _Translation()


def translated() -> AbstractContextManager[None]:
    """Translate SQLite's errors.

    Raises:
        SqlError: the statement was interrupted, is too complex, or has values that are too large; or the disk is full.
        BusyError: another process locks the database.
        StorageError: the database is damaged, or cannot be read or written.
    """
    return _TRANSLATION


def sqlite_error(error: apsw.Error) -> FlowError | None:
    """Return the translation of a SQLite error; None for a defect of this project."""
    cause = error.__context__
    if isinstance(cause, apsw.Error) and str(error).startswith(_ENDED):
        return sqlite_error(cause)
    if (trouble := _of_disk(error)) is not None:
        return trouble
    match error:
        case apsw.InterruptError():
            return cancellation()
        case apsw.TooBigError():
            hint = "Divide the value into several rows."
            return SqlError("54000", f"a value is larger than {MOST_BYTES:,} bytes", hint=hint)
        case apsw.SQLError():
            return _of_message(str(error))
    return None


def _of_disk(error: apsw.Error) -> FlowError | None:
    match error:
        case apsw.FullError():
            return SqlError("53100", "no space left on the device that stores the rows")
        case apsw.NoMemError():
            return SqlError("53200", "out of memory", hint="Read fewer rows at once.")
        case apsw.BusyError() | apsw.LockedError():
            hint = "flowctl retries after that process, perhaps a backup, has finished"
            return BusyError("another process holds a lock on the database that stores the rows", hint=hint)
        case apsw.IOError() | apsw.CantOpenError() | apsw.ReadOnlyError() | apsw.NotADBError() | apsw.CorruptError():
            return StorageError(f"the database that stores the rows cannot be used: {error}")
    return None


def _of_message(message: str) -> SqlError:
    if "integer overflow" in message:
        return SqlError("22003", "bigint out of range")
    if "ntile" in message:
        return SqlError("22014", "argument of ntile must be greater than zero")
    if "nth_value" in message:
        return SqlError("22016", "argument of nth_value must be greater than zero")
    if any(words in message for words in ("too many", "too deep", "too large", "stack overflow", "at most")):
        hint = "Divide the statement, or move parts of it into views."
        return SqlError("54001", "the statement is too complex", hint=hint, detail=message)
    return SqlError("XX000", f"SQLite rejected a generated statement: {message}")


def names(width: int, prefix: str = "") -> str:
    """Return names of columns, separated by commas; rows without columns have a placeholder."""
    return ", ".join(f"{prefix}c{index}" for index in range(width or 1))


@dataclass(slots=True)
class Block:
    """A SELECT without grouping, in parts.

    Attributes:
        source: its FROM clause without the keyword; empty for one row without columns.
        columns: SQL of its columns.
        computed: indexes of columns that are neither a table's column nor a constant.
        predicates: SQL of conditions that cannot fail.
        fallible: SQL of conditions that can fail.
        tables: number of joined tables.
        is_plain: whether more tables may be joined with a comma.
        is_derived: whether it selects from other SELECTs.
        depth: number of nested SELECTs that SQLite may flatten.
    """

    source: str
    columns: list[str]
    computed: frozenset[int] = frozenset()
    predicates: list[str] = field(default_factory=list)
    fallible: list[str] = field(default_factory=list)
    tables: int = 1
    is_plain: bool = True
    is_derived: bool = False
    depth: int = 0


def order_term(order: Order, text: str) -> str:
    """Return the ORDER BY term of an expression's SQL."""
    direction = "DESC" if order.is_descending else "ASC"
    return f"({sort_key(text, order.expression.type)}) {direction} NULLS {'FIRST' if order.nulls_first else 'LAST'}"


def rows_sql(rows: Sequence[Row], width: int) -> str:
    """Return a SELECT of rows, with columns `c0`, `c1` and so on.

    Args:
        rows: rows of `width` data.
        width: number of columns.
    """
    if not rows:
        return "SELECT " + (", ".join(f"NULL AS c{index}" for index in range(width or 1))) + " WHERE 0"
    columns = ", ".join(f"column{index + 1} AS c{index}" for index in range(width)) or "NULL AS c0"
    values = ", ".join(f"({', '.join(map(sql_of_datum, row)) or 'NULL'})" for row in rows)
    return f"SELECT {columns} FROM (VALUES {values})"


def limit_sql(limit: int | None, offset: int) -> str:
    """Return the LIMIT clause, with a space before it."""
    if limit is None and not offset:
        return ""
    return f" LIMIT {-1 if limit is None else limit} OFFSET {offset}"


def guarded(predicates: Sequence[str], fallible: Sequence[str]) -> list[str]:
    """Return SQL of conditions; conditions that can fail are evaluated only if all other conditions are true."""
    if not fallible:
        return list(predicates)
    # In the condition of a CASE, SQLite evaluates predicates in order, and stops at the first false one.
    return [*predicates, f"(CASE WHEN {' AND '.join([*predicates, *fallible])} THEN 1 ELSE 0 END)"]


def materialized_once(select: str) -> str:
    """Return a SELECT of the same rows that SQLite does not flatten."""
    return f"WITH once AS MATERIALIZED ({select}) SELECT * FROM once"


def is_one_row(relation: Relation) -> bool:
    """Return whether a relation has at most one row, according to its structure."""
    match relation:
        case Reduce(keys=()):
            return True
        case Constant(rows=rows):
            return len(rows) <= 1
        case TopK(keys=(), limit=limit):
            return limit is not None and limit <= 1
        case Project(input=source) | Filter(input=source) | Distinct(input=source):
            return is_one_row(source)
        case Join(inputs=inputs):
            return all(map(is_one_row, inputs))
        case _:
            return False


_OF_PEERS = {"rank", "dense_rank", "percent_rank", "cume_dist"}
"""Functions that depend only on the order."""
_OF_POSITIONS = {"row_number", "ntile", "lag", "lead"}
"""Functions that depend on the position of a row, in every frame."""
_OF_FRAMES = {"first_value", "last_value", "nth_value"}
"""Functions that return the value of one row of the frame."""

Lower: TypeAlias = Callable[[Expression], str]
"""A function that returns SQL of an expression over the row."""
Ordered: TypeAlias = Callable[[Sequence[Order], bool], str]
"""A function that returns an ORDER BY list, with all columns appended if the flag is set."""


def window_sql(function: WindowFunction, lower: Lower, ordered: Ordered) -> str:
    """Return a window function as SQL.

    Raises:
        SqlError: the value would depend on an undefined order (0A000).
    """
    name = function.function
    arguments = [lower(argument) for argument in function.arguments]
    call = f"{name}({', '.join(arguments)})"
    if name in _OF_POSITIONS:
        return f"{call} OVER ({_window(function, lower, ordered, ties=True)})"
    if name in _OF_PEERS:
        return f"{call} OVER ({_window(function, lower, ordered, ties=False)})"
    if name in _OF_FRAMES:
        return _chosen_row(function, call, lower, ordered)
    ties = function.frame is not None and function.frame.unit is FrameUnit.ROWS
    over = f"OVER ({_window(function, lower, ordered, ties=ties)}{_frame_sql(function.frame)})"
    aggregate = Aggregate(name, function.arguments, function.type)
    return aggregate_sql(aggregate, arguments, over=over)


def _window(function: WindowFunction, lower: Lower, ordered: Ordered, *, ties: bool) -> str:
    partition = ", ".join(f"({lower(key)})" for key in function.partition)
    order = ordered(function.order, ties)
    clauses = [f"PARTITION BY {partition}" if partition else "", f"ORDER BY {order}" if order else ""]
    return " ".join(filter(None, clauses))


def _chosen_row(function: WindowFunction, call: str, lower: Lower, ordered: Ordered) -> str:
    """Return SQL of the value of one row of the frame.

    SQLite would number peers in any order, so a frame of peers is expressed in rows.
    """
    window = _window(function, lower, ordered, ties=True)
    frame = function.frame
    if frame is not None and (frame.unit is FrameUnit.ROWS or frame.is_whole):
        return f"{call} OVER ({window}{_frame_sql(replace(frame, unit=FrameUnit.ROWS))})"
    assert frame is None or frame.is_until_peers, frame
    everything = f"{window} ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
    value = lower(function.arguments[0])
    if function.function == "first_value":
        return f"first_value({value}) OVER ({everything})"
    until_peers = _window(function, lower, ordered, ties=False)
    seen = f"count(*) OVER ({until_peers})"
    nth = lower(function.arguments[1]) if function.function == "nth_value" else None
    if nth is None:
        peers = [f"({lower(part.expression)})" for part in function.order]
        partition = ", ".join([f"({lower(key)})" for key in function.partition] + peers)
        by = f"PARTITION BY {partition} " if partition else ""
        order = ordered((), True)
        return (
            f"last_value({value}) OVER ({by}ORDER BY {order} ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)"
        )
    return f"CASE WHEN {seen} >= {nth} THEN nth_value({value}, {nth}) OVER ({everything}) END"


def _frame_sql(frame: Frame | None) -> str:
    if frame is None:
        return ""
    excluded = f" EXCLUDE {frame.exclusion.value.upper()}" if frame.exclusion else ""
    return f" {frame.unit.value.upper()} BETWEEN {_bound_sql(frame.begin)} AND {_bound_sql(frame.end)}{excluded}"


def _bound_sql(bound: Bound) -> str:
    if bound.offset is None:
        return f"UNBOUNDED {'FOLLOWING' if bound.is_following else 'PRECEDING'}"
    if bound.offset == 0:
        return "CURRENT ROW"
    return f"{abs(bound.offset)} {'FOLLOWING' if bound.offset > 0 else 'PRECEDING'}"


PARAMETERS = -1
"""Columns with this index and below are arguments bound to the statement: `:p0`, `:p1`, ….

These columns stand for the parameters of a statement that is prepared once.
"""

Scope: TypeAlias = Sequence[str]
"""SQL of each column of the current row."""

MOST_TABLES = 50
"""Maximum number of tables joined in one SELECT; SQLite's limit is 64."""
MOST_UNITED = 400
"""Maximum number of SELECTs in one UNION; SQLite's limit is 500."""
MOST_INSIDE = 4
"""Number of nested SELECTs after which a SELECT is materialized.

To flatten two SELECTs, SQLite copies the inner expressions to each of their uses in the outer SELECT. A hundred views
over one another would exceed the memory.
"""

ONE_ROW = "flow_one_row"
"""A SQLite function that returns its second argument; it fails if the first argument, a number of rows, is above 1."""


def parameters_of(node: Any) -> Iterator[Parameter]:
    """Yield all parameters in a part of the algebra."""
    if isinstance(node, Parameter):
        yield node
    elif isinstance(node, tuple):
        for part in node:
            yield from parameters_of(part)
    elif is_dataclass(node):
        for part in fields(node):
            yield from parameters_of(getattr(node, part.name))


def with_arguments(node: Any) -> Any:
    """Return a part of the algebra with placeholder columns instead of parameters."""
    if isinstance(node, Parameter):
        return Column(PARAMETERS - node.index, node.type)
    if isinstance(node, tuple):
        return tuple(with_arguments(part) for part in node)
    if is_dataclass(node) and not isinstance(node, type):
        changed = {part.name: with_arguments(getattr(node, part.name)) for part in fields(node)}
        return replace(node, **changed)
    return node


def select_of(relation: Relation, table: Callable[[Get], str]) -> str:
    """Return a relation as a SELECT.

    Args:
        relation: a relation without parameters, unless they are bound to the statement.
        table: returns a table, or a query in parentheses, for a collection; its columns are `c0`, `c1` and so on, and
            each row is repeated by its count.

    Returns:
        SQL with columns `c0`, `c1` and so on; if the relation has none, `c0` is NULL.
    """
    return _Lowering(table).select(relation, ())


def finished_select(relation: Relation, finishing: Finishing, table: Callable[[Get], str]) -> str:
    """Return a relation as a SELECT of the final rows, in their order.

    Args:
        relation: as for `select_of`.
        finishing: the final processing of its rows.
        table: as for `select_of`.
    """
    lowering = _Lowering(table)
    block = lowering.block(relation, ())
    if finishing.order or finishing.limit is not None or finishing.offset:
        block = lowering.wrapped(block)
    shown = [block.columns[index] for index in finishing.columns]
    text = f"SELECT {', '.join(shown) or 'NULL'}{lowering.source_sql(block)}"
    if finishing.order or finishing.limit is not None or finishing.offset:
        text += f" ORDER BY {lowering.order_sql(finishing.order, block.columns, ()) or '1'}"
    return text + limit_sql(finishing.limit, finishing.offset)


class _Lowering:
    """The lowering of one statement."""

    def __init__(self, table: Callable[[Get], str]) -> None:
        self._table = table
        self._aliases = 0

    def select(self, relation: Relation, scopes: tuple[Scope, ...]) -> str:
        """Return a relation as a SELECT."""
        return self._select(self.block(relation, scopes))

    def block(self, relation: Relation, scopes: tuple[Scope, ...]) -> Block:  # noqa: PLR0911, PLR0912 - one for each kind
        """Return a relation as a SELECT in parts.

        Args:
            relation: the relation.
            scopes: rows of the enclosing queries, the innermost first.
        """
        match relation:
            case Get():
                return self._from(self._table(relation), len(relation.types))
            case Constant():
                return self._constant(relation)
            case Project():
                return self._project(relation, scopes)
            case Filter():
                return self._filter(relation, scopes)
            case Join():
                return self._join(relation, scopes)
            case OuterJoin():
                return self._outer_join(relation, scopes)
            case Unnest():
                return self._unnest(relation, scopes)
            case UnionAll():
                return self._union(relation.inputs, scopes)
            case Distinct():
                block = self.block(relation.input, scopes)
                return self._derived(self._select(block, "SELECT DISTINCT"), len(relation.types))
            case SetOperation():
                return self._set_operation(relation, scopes)
            case Reduce():
                return self._reduce(relation, scopes)
            case Window():
                return self._window(relation, scopes)
            case TopK():
                return self._top(relation, scopes)
            case Recursion() | Recurring():
                raise SqlError("0A000", "WITH RECURSIVE is not supported here")

    def source_sql(self, block: Block) -> str:
        """Return the FROM and WHERE clauses of a block."""
        source = f" FROM {block.source}" if block.source else ""
        predicates = guarded(block.predicates, block.fallible)
        return source + (f" WHERE {' AND '.join(predicates)}" if predicates else "")

    def order_sql(self, order: Sequence[Order], columns: Scope, scopes: tuple[Scope, ...], *, ties: bool = True) -> str:
        """Return the ORDER BY list for a block without computed columns.

        Args:
            order: sort keys of the rows.
            columns: SQL of their columns.
            scopes: rows of the enclosing queries.
            ties: whether ties are ordered by all columns.
        """
        terms, settled = [], set()
        for part in order:
            text = self._expression(part.expression, columns, scopes)
            if text in settled:
                continue
            settled.add(text)
            terms.append(order_term(part, text))
        return ", ".join(terms + ([text for text in columns if text not in settled] if ties else []))

    def wrapped(self, block: Block) -> Block:
        """Return a block of the same rows whose columns are all columns of a table."""
        is_apart = block.depth >= MOST_INSIDE
        select = self._select(block)
        wrapped = self._derived(materialized_once(select) if is_apart else select, len(block.columns))
        wrapped.depth = 0 if is_apart else block.depth + 1
        return wrapped

    def _select(self, block: Block, verb: str = "SELECT") -> str:
        columns = ", ".join(f"{text} AS c{index}" for index, text in enumerate(block.columns)) or "NULL AS c0"
        return f"{verb} {columns}{self.source_sql(block)}"

    def _from(self, table: str, width: int) -> Block:
        self._aliases += 1
        alias = f"t{self._aliases}"
        return Block(f"{table} AS {alias}", [f"{alias}.c{index}" for index in range(width)])

    def _derived(self, select: str, width: int) -> Block:
        block = self._from(f"({select})", width)
        block.is_derived = True
        return block

    def _expression(self, expression: Expression, columns: Scope, scopes: tuple[Scope, ...]) -> str:
        def column(reference: Column | OuterColumn) -> str:
            if reference.index < 0:
                return f":p{PARAMETERS - reference.index}"
            scope = columns if isinstance(reference, Column) else scopes[reference.depth - 1]
            return scope[reference.index]

        return sql_of(expression, column, lambda subquery: self._subquery(subquery, columns, scopes))

    def _subquery(self, subquery: Subquery, columns: Scope, scopes: tuple[Scope, ...]) -> str:
        inner = self.select(subquery.relation, (columns, *scopes))
        match subquery.kind:
            case SubqueryKind.EXISTS:
                return f"EXISTS ({inner})"
            case SubqueryKind.IN:
                operands = [self._expression(operand, columns, scopes) for operand in subquery.operands]
                return f"(({', '.join(operands)}) IN ({inner}))"
            case SubqueryKind.SCALAR:
                if is_one_row(subquery.relation):
                    return f"({inner})"
                return f"(SELECT {ONE_ROW}(count(*), max(c0)) FROM (SELECT c0 FROM ({inner}) LIMIT 2))"

    def _constant(self, constant: Constant) -> Block:
        if len(constant.rows) == 1 and not constant.types:
            return Block("", [], tables=0)
        return self._derived(rows_sql(constant.rows, len(constant.types)), len(constant.types))

    def _once(self, block: Block, expressions: Sequence[Expression]) -> Block:
        """Return the block; if the expressions read a computed column, wrap the block to compute each column once."""
        if block.computed and any(
            has_subquery(expression) or columns_read(expression) & block.computed for expression in expressions
        ):
            return self.wrapped(block)
        return block

    def _input(self, relation: Relation, scopes: tuple[Scope, ...]) -> Block:
        """Return a block of an input; SQLite would evaluate a changing value again for each of its uses."""
        block = self.block(relation, scopes)
        if not isinstance(relation, Project) or not any(map(is_volatile, relation.expressions)):
            return block
        return self._derived(materialized_once(self._select(block)), len(block.columns))

    def _project(self, project: Project, scopes: tuple[Scope, ...]) -> Block:
        block = self._input(project.input, scopes)
        block = self._once(block, [expression for expression in project.expressions if not is_atomic(expression)])
        columns = [self._expression(expression, block.columns, scopes) for expression in project.expressions]
        block.computed = frozenset(
            index
            for index, expression in enumerate(project.expressions)
            if not is_atomic(expression) or (isinstance(expression, Column) and expression.index in block.computed)
        )
        block.columns = columns
        return block

    def _filter(self, filtering: Filter, scopes: tuple[Scope, ...]) -> Block:
        return self._restricted(self._input(filtering.input, scopes), [filtering.predicate], scopes)

    def _restricted(self, block: Block, predicates: Sequence[Expression], scopes: tuple[Scope, ...]) -> Block:
        """Return a block of the rows for which predicates are true."""
        single = [part for predicate in predicates for part in conjuncts(predicate)]
        fallible = [part for part in single if can_fail(part)]
        block = self._once(block, single)
        block.predicates += [
            f"({self._expression(part, block.columns, scopes)})" for part in single if part not in fallible
        ]
        if fallible and block.is_derived and not scopes:
            # SQLite would move the predicates into the subquery, beside predicates that must be evaluated first.
            block = self._derived(materialized_once(self._select(block)), len(block.columns))
        block.fallible += [f"({self._expression(part, block.columns, scopes)})" for part in fallible]
        return block

    def _join(self, join: Join, scopes: tuple[Scope, ...]) -> Block:
        joined = Block("", [], tables=0)
        for relation in join.inputs:
            block = self.block(relation, scopes)
            if not block.is_plain or joined.tables + block.tables > MOST_TABLES:
                block = self.wrapped(block)
            if joined.tables + block.tables > MOST_TABLES:
                joined = self._derived(materialized_once(self._select(joined)), len(joined.columns))
            joined.source = ", ".join(source for source in (joined.source, block.source) if source)
            joined.computed |= {len(joined.columns) + index for index in block.computed}
            joined.columns += block.columns
            joined.predicates += block.predicates
            joined.fallible += block.fallible
            joined.tables += block.tables
            joined.is_derived |= block.is_derived
            joined.depth = max(joined.depth, block.depth)
        return self._restricted(joined, join.predicates, scopes)

    def _outer_join(self, join: OuterJoin, scopes: tuple[Scope, ...]) -> Block:
        left, right = (self._table_of(relation, scopes) for relation in (join.left, join.right))
        columns = left.columns + right.columns
        if join.side is Side.RIGHT:
            left, right = right, left
        word = "FULL" if join.side is Side.FULL else "LEFT"
        parts = conjuncts(join.predicate)
        texts = [
            [f"({self._expression(part, columns, scopes)})" for part in parts if can_fail(part) is fallible]
            for fallible in (False, True)
        ]
        predicate = " AND ".join(guarded(*texts))
        return Block(
            f"{left.source} {word} JOIN {right.source} ON {predicate}",
            columns,
            tables=2,
            is_plain=False,
            is_derived=True,
            depth=max(left.depth, right.depth),
        )

    def _unnest(self, unnest: Unnest, scopes: tuple[Scope, ...]) -> Block:
        block = self.block(unnest.input, scopes)
        if block.source and not (block.is_plain and block.tables < MOST_TABLES):
            block = self.wrapped(block)
        if can_fail(unnest.array) and (block.predicates or block.fallible) and not scopes:
            block = self._derived(materialized_once(self._select(block)), len(block.columns))
        block = self._once(block, [unnest.array])
        self._aliases += 1
        array = self._expression(unnest.array, block.columns, scopes)
        kind = unnest.types[-2]
        source, element, place = elements_sql(array, kind, f"t{self._aliases}")
        block.source = f"{block.source}, {source}" if block.source else source
        block.computed |= {len(block.columns), len(block.columns) + 1}
        block.columns = [*block.columns, element, place]
        block.tables += 1
        return block

    def _table_of(self, relation: Relation, scopes: tuple[Scope, ...]) -> Block:
        """Return a relation as a block that selects all rows and all columns of one table."""
        block = self.block(relation, scopes)
        is_table = block.tables == 1 and block.is_plain and not block.predicates and not block.fallible
        atomic = is_table and all(text.startswith("t") and "." in text for text in block.columns)
        return block if atomic and not block.computed else self.wrapped(block)

    def _union(self, inputs: Sequence[Relation], scopes: tuple[Scope, ...]) -> Block:
        blocks = [self.block(relation, scopes) for relation in inputs]
        selects = [self._select(block) for block in blocks]
        width = len(inputs[0].types)
        while len(selects) > MOST_UNITED:
            united = materialized_once(" UNION ALL ".join(selects[:MOST_UNITED]))
            selects = [*selects[MOST_UNITED:], f"SELECT {names(width)} FROM ({united})"]
        united_block = self._derived(" UNION ALL ".join(selects), width)
        united_block.depth = max(block.depth for block in blocks) + 1
        return united_block

    def _set_operation(self, operation: SetOperation, scopes: tuple[Scope, ...]) -> Block:
        width = len(operation.types)
        sides = [self.select(relation, scopes) for relation in (operation.left, operation.right)]
        if operation.is_all:
            count = f"row_number() OVER (PARTITION BY {names(width)}) AS copy"
            sides = [f"SELECT {names(width)}, {count} FROM ({side})" for side in sides]
        word = "EXCEPT" if operation.operator is SetOperator.EXCEPT else "INTERSECT"
        return self._derived(f" {word} ".join(sides), width)

    def _reduce(self, reduce: Reduce, scopes: tuple[Scope, ...]) -> Block:
        block = self.block(reduce.input, scopes)
        if scopes:
            block = self.wrapped(block)
        read = [*reduce.keys, *self._aggregated(reduce)]
        block = self._once(block, read)

        def lower(expression: Expression) -> str:
            return self._expression(expression, block.columns, scopes)

        values = [lower(key) for key in reduce.keys]
        for aggregate in reduce.aggregates:
            arguments = [lower(argument) for argument in aggregate.arguments]
            condition = None if aggregate.condition is None else lower(aggregate.condition)
            order = [order_term(part, lower(part.expression)) for part in aggregate.order]
            values.append(aggregate_sql(aggregate, arguments, condition, order))
        columns = ", ".join(f"{text} AS c{index}" for index, text in enumerate(values)) or "count(*) AS c0"
        select = f"SELECT {columns}{self.source_sql(block)}"
        if reduce.keys:
            select += f" GROUP BY {', '.join(str(index + 1) for index in range(len(reduce.keys)))}"
        return self._derived(select, len(values))

    def _aggregated(self, reduce: Reduce) -> Iterator[Expression]:
        for aggregate in reduce.aggregates:
            yield from aggregate.arguments
            yield from (part.expression for part in aggregate.order)
            if aggregate.condition is not None:
                yield aggregate.condition

    def _window(self, window: Window, scopes: tuple[Scope, ...]) -> Block:
        block = self.wrapped(self.block(window.input, scopes))

        def lower(expression: Expression) -> str:
            return self._expression(expression, block.columns, scopes)

        def ordered(order: Sequence[Order], ties: bool) -> str:
            return self.order_sql(order, block.columns, scopes, ties=ties)

        block.columns = block.columns + [window_sql(function, lower, ordered) for function in window.functions]
        return self.wrapped(block)

    def _top(self, top: TopK, scopes: tuple[Scope, ...]) -> Block:
        block = self.wrapped(self.block(top.input, scopes))
        order = self.order_sql(top.order, block.columns, scopes)
        if not top.keys:
            select = self._select(block) + (f" ORDER BY {order}" if order else "") + limit_sql(top.limit, top.offset)
            return self._derived(select, len(top.types))
        if top.limit is None and not top.offset:
            return block
        keys = ", ".join(f"({self._expression(key, block.columns, scopes)})" for key in top.keys)
        number = f"row_number() OVER (PARTITION BY {keys} ORDER BY {order or '1'}) AS number"
        width = len(top.types)
        numbered = f"SELECT {', '.join([*block.columns, number])}{self.source_sql(block)}"
        until = "" if top.limit is None else f" AND number <= {top.offset + top.limit}"
        return self._derived(f"SELECT {names(width)} FROM ({numbered}) WHERE number > {top.offset}{until}", width)
