"""Explanations of rows of SQL views: the rows of tables and collections from which a row follows.

A view has no key and no replay, so a trace explains its row (`derive.why.lineage`). Then the view is computed again
from only the traced rows, and must have the same number of copies of the row.

Conditions on traced rows are shown as texts of SQL.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest, nsmallest

from derive.algebra.bounds import bounds_of
from derive.algebra.expression import Call, Case, Column, Expression, Literal, OuterColumn, Subquery
from derive.algebra.relation import Constant, Filter, Finishing, Get, GlobalId, Project, Relation
from derive.algebra.rewrite import columns_read, mentions, with_gets
from derive.algebra.types import Datum, Row, Type
from derive.compute.oneshot import at_time, evaluate
from derive.contents.rows import contents_at
from derive.document.clock import format_rfc3339
from derive.document.exact import parse_exact
from derive.document.key import compile_keys
from derive.document.pointer import JSON
from derive.errors import FrontierError, SqlError, UsageError
from derive.functions.registry import function_named
from derive.functions.types.type_info import text_of
from derive.plural import counted
from derive.relations.columns import Source, columns_of
from derive.schema.projection import UUID_POINTER
from derive.sql.catalog.snapshot import Objects
from derive.sql.parser.ast import QualifiedName
from derive.sql.parser.parse import parse
from derive.sql.parser.statement import ObjectKind, SelectStatement, Subscribe
from derive.sql.planner.ddl import relation_named
from derive.sql.planner.dependencies import ids_of, needs_context
from derive.sql.planner.interfaces import NamedRelation, RelationKind
from derive.sql.planner.plan import plan_view
from derive.sql.planner.planned import PlannedQuery, bind, is_of_session
from derive.sql.transactions.altered_table import stored_column
from derive.storage.roles import Readable
from derive.storage.table_types import Table
from derive.time import BEGINNING, END_OF_TIME
from derive.why.lineage import Leaf, bound_to, is_one_of, lineage_of

MOST_ROWS = 100_000
"""Largest number of traced rows from which a view is computed again."""

_MOST_EXAMPLES = 3
_MOST_KEYS = 1_000


@dataclass(frozen=True, slots=True)
class TracedRows:
    """Rows of a table or of a collection from which a row of a view follows.

    Attributes:
        name: name of the collection, or of the table with its schema.
        source: the table or collection.
        condition: the condition on the rows, in SQL; empty for none.
        is_whole: whether these are all rows of the relation.
        is_absence: whether these rows are the missing partners of an outer join.
        count: number of the rows.
        rows: the shown rows: the latest of a collection, the first of a table.
    """

    name: str
    source: Source
    condition: str
    is_whole: bool
    is_absence: bool
    count: int
    rows: tuple[Row, ...]

    def document(self, row: Row) -> JSON:
        """Return the document of a row; None for a table, whose rows are no documents."""
        if isinstance(self.source, Table):
            return None
        pointers = [column.pointer for column in columns_of(self.source)]
        text = row[pointers.index("")] if "" in pointers else None
        return parse_exact(text.encode()) if isinstance(text, str) else None

    def key(self, row: Row) -> bytes | None:
        """Return the packed key of a row's document; None for a table."""
        document = self.document(row)
        if document is None or isinstance(self.source, Table):
            return None
        return compile_keys(self.source.key, self.source.key_defaults)([document])[0]


@dataclass(frozen=True, slots=True)
class ExplainedRow:
    """The explanation of one row of a view.

    Attributes:
        view: name of the view, with its schema.
        columns: names and types of its columns.
        row: the row.
        copies: number of equal rows in the view.
        as_of: timestamp.
        sources: the rows from which it follows, by relation and part of the view.
        is_equal: whether the view, computed from only these rows, has the same copies of the row; None for too many
            rows.
        is_stored: whether a materialized view has stored the same copies; None for another view, or if its rows at that
            time are not known.
    """

    view: str
    columns: tuple[tuple[str, Type], ...]
    row: Row
    copies: int
    as_of: int
    sources: tuple[TracedRows, ...]
    is_equal: bool | None
    is_stored: bool | None = None


class ViewExplainer:
    """Explains rows of views of one data folder.

    Args:
        store: the data folder.
        objects: the names of SQL.
    """

    def __init__(self, store: Readable, objects: Objects) -> None:
        self._store = store
        self._objects = objects

    def explain(self, name: str, condition: str, as_of: int | None, most: int) -> ExplainedRow:
        """Explain the row of a view for which a condition is true.

        Args:
            name: name of the view, as in SQL.
            condition: an expression of SQL over the view's columns.
            as_of: timestamp, microseconds; None for the latest at which all sources are known.
            most: largest number of shown rows of each source.

        Raises:
            FrontierError: the sources are not known at that time.
            SqlError: the name or the condition is wrong, or the view has no value at that time.
            UsageError: the condition is true for no row, or for several different rows.
        """
        named = self._view(name)
        chosen = self._planned(named, condition)
        time = self._time(named, ids_of(chosen), as_of)
        chosen, view = (_at_time(relation, time) for relation in (chosen, self._planned(named, "")))
        reading = _Reading(self._store, self._sources(ids_of(view)), time)
        title = self._title(named.id)
        row, copies = _only_row(reading.rows(chosen), named, title, time)
        lineage = lineage_of(view, row, reading.rows)
        contents: dict[GlobalId, list[Row]] = {}
        traced, room = [], MOST_ROWS
        for leaf in lineage.leaves:
            rows, count = [], 0
            source = reading.sources[leaf.get.id]
            for batch in reading.leaf_rows(leaf):
                count += len(batch)
                rows += batch[: max(room, 0)]
                room -= len(batch)
            contents[leaf.place.id] = rows
            if not leaf.is_empty:
                traced.append(self._traced(leaf, source, rows, count, most))
        equal = None if room < 0 else _again(lineage.restricted, contents, copies)
        columns = tuple((column.name, column.type) for column in named.columns)
        stored = self._stored_copies(named, row, time)
        is_stored = None if stored is None else stored == copies
        return ExplainedRow(title, columns, row, copies, time, tuple(_merged(traced)), equal, is_stored)

    def _stored_copies(self, named: NamedRelation, row: Row, time: int) -> int | None:
        """Return how often a materialized view has stored a row; None if that is not known."""
        table = self._stored_view(named)
        if table is None or not table.since <= time < table.upper:
            return None
        relation: Relation = Get(named.id, tuple(column.type for column in named.columns))
        for condition in is_one_of([Column(at, kind) for at, kind in enumerate(relation.types)], [row]):
            relation = Filter(relation, condition)
        return sum(map(len, _Reading(self._store, {named.id: table}, time).rows(relation)))

    def _stored_view(self, named: NamedRelation) -> Table | None:
        is_stored = named.kind is RelationKind.MATERIALIZED_VIEW
        return self._store.tables.table(named.id) if is_stored else None

    def _view(self, name: str) -> NamedRelation:
        if name.startswith("sql/") and name.count("/") == 2:
            name = ".".join('"' + part.replace('"', '""') + '"' for part in name.split("/")[1:])
        try:
            statement = parse(f"SUBSCRIBE {name}")
            if not isinstance(statement, Subscribe) or not isinstance(statement.target, QualifiedName):
                raise UsageError(f"--view takes the name of a view, not {name}")
            named = relation_named(statement.target, self._objects)
        except SqlError as error:
            error.offset = None  # the place in a statement that the user has not written
            raise
        if named.kind not in (RelationKind.VIEW, RelationKind.MATERIALIZED_VIEW):
            hint = (
                f"explain one of its documents: flowctl why --collection {named.name} --key KEY"
                if named.kind is RelationKind.COLLECTION
                else "only rows of views follow from other rows"
            )
            raise UsageError(f"'{named.name}' is a {named.kind.value} and no view", hint=hint)
        return named

    def _planned(self, named: NamedRelation, condition: str) -> Relation:
        """Return the rows of a view that fulfil a condition, over stored relations."""
        item = self._objects.items[named.id]
        quoted = ".".join('"' + part.replace('"', '""') + '"' for part in (item.schema, item.name))
        prefix = f"SELECT * FROM {quoted} WHERE ("
        text = f"{prefix}{condition}\n)" if condition else f"SELECT * FROM {quoted}"
        try:
            statement = parse(text)
            assert isinstance(statement, SelectStatement)
            relation = self._expanded(plan_view(statement.query, self._objects).relation)
        except SqlError as error:
            if error.offset is not None:
                error.offset = min(max(error.offset - len(prefix), 0), len(condition))
            raise
        if needs_context(relation):
            raise UsageError(
                f"'{named.name}' reads system relations or values of the session, which have no history",
                hint="explain a view of tables and collections",
            )
        return relation

    def _expanded(self, relation: Relation) -> Relation:
        """Return a relation with all views replaced by their definitions."""

        def stored(get: Get) -> Relation:
            item = self._objects.items.get(get.id)
            if item is not None and item.kind in (ObjectKind.VIEW, ObjectKind.MATERIALIZED_VIEW):
                return self._expanded(self._objects.meaning(item))
            return get

        return with_gets(relation, stored)

    def _sources(self, ids: Collection[GlobalId]) -> dict[GlobalId, Source]:
        sources: dict[GlobalId, Source] = {}
        for identifier in ids:
            spec, item = self._objects.collections.get(identifier), self._objects.items.get(identifier)
            table = None if spec is not None else self._store.tables.table(identifier)
            if table is not None and item is not None and item.kind is ObjectKind.TABLE:
                table = replace(table, columns=tuple(map(stored_column, item.columns)))
            source = spec or table
            if source is None:
                raise SqlError("42P01", f"a relation that the view reads was dropped: {self._title(identifier)}")
            sources[identifier] = source
        return sources

    def _title(self, identifier: GlobalId) -> str:
        spec = self._objects.collections.get(identifier)
        return spec.name if spec is not None else self._objects.name_of(identifier) or str(identifier)

    def _time(self, named: NamedRelation, ids: Collection[GlobalId], as_of: int | None) -> int:
        """Return the time of the read.

        Raises:
            FrontierError: the sources are not known at that time, or at no common time.
        """
        if not ids:
            return self._store.timeline.present() if as_of is None else as_of
        begin, end, oldest, youngest, is_derived = BEGINNING, END_OF_TIME, "", "", False
        for identifier in sorted(ids):
            name = self._title(identifier)
            since, upper = self._frontiers(identifier)
            if since > begin:
                begin, youngest = since, name
            if upper < end:
                end, oldest = upper, name
                is_derived = not self._objects.is_sealed_by_hand(identifier)
        if as_of is None and begin < end:
            stored = self._stored_view(named)
            # The stored rows of a materialized view may be known up to an earlier time.
            return min(end, stored.upper) - 1 if stored and max(begin, stored.since) < stored.upper else end - 1
        if as_of is None:
            raise FrontierError(
                f"there is no time at which all sources of '{named.name}' are known: '{oldest}' is final before"
                f" {format_rfc3339(end)}, and the history of '{youngest}' begins at {format_rfc3339(begin)}",
                hint=f"derive '{oldest}' up to the present: flowctl run --until-idle"
                if is_derived
                else f"query the view, which advances its sources: flowctl sql -c 'SELECT … FROM {named.name}'",
            )
        if not begin <= as_of < end:
            limit = (
                f"'{oldest}' is final only before {format_rfc3339(end)}"
                if as_of >= end
                else f"the history of '{youngest}' begins at {format_rfc3339(begin)}"
            )
            raise FrontierError(
                f"the rows of '{named.name}' are not known at {format_rfc3339(as_of)}: {limit}",
                hint="choose another time: --as-of TIME",
            )
        return as_of

    def _frontiers(self, identifier: GlobalId) -> tuple[int, int]:
        spec, item = self._objects.collections.get(identifier), self._objects.items.get(identifier)
        known = self._store.collection(spec.name) if spec else self._store.tables.table(identifier)
        if known is None:
            raise UsageError(
                f"nothing is stored in '{self._title(identifier)}' yet",
                hint="ingest documents, or derive them: flowctl run --until-idle",
            )
        return max(known.since, item.known_from if item else BEGINNING), known.upper

    def _traced(self, leaf: Leaf, source: Source, rows: list[Row], count: int, most: int) -> TracedRows:
        columns = columns_of(source)
        clock = next((place for place, column in enumerate(columns) if column.pointer == UUID_POINTER), None)
        if clock is None:
            shown = nsmallest(most, rows, key=repr)
        else:
            shown = nlargest(most, rows, key=lambda row: (row[clock], repr(row)))[::-1]
        names = [column.name for column in columns]
        fields = [column for column in range(len(columns)) if columns[column].pointer not in ("", UUID_POINTER)]
        return TracedRows(
            self._title(leaf.get.id),
            source,
            condition_text(leaf, names, len(fields)),
            not leaf.conditions,
            leaf.is_absence,
            count,
            tuple(shown),
        )


class _Reading:
    """Reads relations over stored relations at one time."""

    def __init__(self, store: Readable, sources: Mapping[GlobalId, Source], time: int) -> None:
        self._store = store
        self._time = time
        self.sources = sources

    def rows(self, relation: Relation) -> Iterator[list[Row]]:
        """Yield the rows of a relation in batches."""
        bounds = bounds_of(relation)

        def contents(identifier: GlobalId, requested: Collection[int]) -> Iterator[list[Row]]:
            source = self.sources[identifier]
            return contents_at(self._store, source, self._time, requested, bounds.get(identifier))

        return evaluate(relation, _all_columns(relation), contents)

    def leaf_rows(self, leaf: Leaf) -> Iterator[list[Row]]:
        """Yield the traced rows of a stored relation in batches; of a collection, their keys are found first.

        A row has the whole document, which is costly to make for rows that only the conditions exclude.
        """
        source, relation = self.sources[leaf.get.id], leaf.rows
        if not isinstance(source, Table) and leaf.conditions:
            columns = columns_of(source)
            pointers = [column.pointer for column in columns]
            places = [pointers.index(pointer) for pointer in source.key if pointer in pointers]
            keys = [Column(place, columns[place].type) for place in places]
            values: dict[Row, None] = {}
            for batch in self.rows(Project(relation, tuple(keys))):
                values.update(dict.fromkeys(batch))
                if len(values) > _MOST_KEYS:
                    break
            if len(keys) == len(source.key) and len(values) <= _MOST_KEYS:
                for condition in is_one_of(keys, values, is_identity=True):
                    relation = Filter(relation, condition)
        return self.rows(relation)


def _all_columns(relation: Relation) -> Finishing:
    return Finishing((), None, 0, tuple(range(len(relation.types))))


def _at_time(relation: Relation, time: int) -> Relation:
    """Return a relation in which `now()` is a time."""
    of_session = mentions(relation, is_of_session)
    query = PlannedQuery(relation, _all_columns(relation), (), is_of_session=of_session)
    return at_time(bind(query, (), time).relation, time)


def _only_row(batches: Iterator[list[Row]], named: NamedRelation, title: str, time: int) -> tuple[Row, int]:
    """Return the only distinct row, and the number of its copies.

    Raises:
        UsageError: there is no row, or there are several.
    """
    counts: dict[Row, int] = {}
    for batch in batches:
        for row in batch:
            counts[row] = counts.get(row, 0) + 1
    if not counts:
        raise UsageError(
            f"no row of '{title}' at {format_rfc3339(time)} fulfils the condition",
            hint="see its rows: flowctl sql -c 'SELECT … AS OF …'",
        )
    if len(counts) > 1:
        shown = [_row_text(row, named) for row in list(counts)[:_MOST_EXAMPLES]]
        more = f", and {len(counts) - len(shown):,} more" if len(counts) > len(shown) else ""
        raise UsageError(
            f"{len(counts):,} different rows of '{title}' fulfil the condition",
            hint=f"choose one with --row or --where; they are {', '.join(shown)}{more}",
        )
    ((row, copies),) = counts.items()
    return row, copies


def _row_text(row: Row, named: NamedRelation) -> str:
    pairs = zip(named.columns, row, strict=True)
    return "(" + ", ".join(f"{column.name} = {literal_text(column.type, datum)}" for column, datum in pairs) + ")"


def _again(restricted: Relation, contents: Mapping[GlobalId, list[Row]], copies: int) -> bool:
    """Return whether a restricted view has the same number of copies of its row, from only the traced rows."""

    def traced(identifier: GlobalId, _: Collection[int]) -> Iterator[list[Row]]:
        return iter([contents[identifier]])

    return sum(map(len, evaluate(restricted, _all_columns(restricted), traced))) == copies


def _merged(traced: Sequence[TracedRows]) -> Iterator[TracedRows]:
    """Yield each traced row once, because parts of a view may read the same rows."""
    seen: list[TracedRows] = []
    for one in traced:
        if one not in seen:
            seen.append(one)
            yield one


_SHOWN_VALUES = 5
_MIRRORED = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
"""For each comparison, the comparison of the exchanged operands, because values are shown on the right."""


def literal_text(kind: Type, datum: Datum) -> str:
    """Return a datum as a literal of SQL."""
    if datum is None:
        return "NULL"
    text = text_of(kind, datum)
    is_plain = kind in (Type.SMALLINT, Type.INTEGER, Type.BIGINT, Type.DOUBLE, Type.NUMERIC, Type.BOOLEAN)
    return text if is_plain and text[-1:].isalnum() else "'" + text.replace("'", "''") + "'"


def condition_text(leaf: Leaf, names: Sequence[str], width: int) -> str:
    """Return the conditions of a leaf in SQL; empty if they compare all columns, like the rows themselves."""
    conditions = leaf.conditions
    if leaf.outer is not None and len(leaf.outer) == 1:
        conditions = bound_to(conditions, leaf.outer[0])
    if len(set[int]().union(*map(_compared_columns, conditions))) >= width > 1:
        return ""
    return _joined("and", conditions, names)


def _joined(symbol: str, parts: Sequence[Expression], names: Sequence[str]) -> str:
    """Return a conjunction or disjunction, without parts that are certainly false."""
    possible = [part for part in parts if not _is_false(part)]
    texts = [_expression_text(part, names) for part in possible]
    if len(texts) > 1:
        nested = [isinstance(part, Call) and part.function in ("and", "or") for part in possible]
        texts = [f"({text})" if is_nested else text for text, is_nested in zip(texts, nested, strict=True)]
    return f" {symbol.upper()} ".join(texts)


def _compared_columns(condition: Expression) -> set[int]:
    """Return the columns that a condition compares with values."""
    match condition:
        case Call("and", parts):
            return set[int]().union(*map(_compared_columns, parts))
        case Call("or", parts):
            return set[int].intersection(*map(_compared_columns, parts))
        case Call(name, (key, *_)) if name.startswith("equal_") or name in ("in", "is_null"):
            return columns_read(key)
        case Subquery(relation=Constant(), operands=operands):
            return set[int]().union(*map(columns_read, operands))
    return set()


def _expression_text(expression: Expression, names: Sequence[str]) -> str:  # noqa: PLR0911 (one for each kind)
    """Return an expression in SQL, as a text for people."""
    match expression:
        case Column(index):
            name = names[index]
            return name if name.isidentifier() and name == name.lower() else '"' + name.replace('"', '""') + '"'
        case Literal(datum, kind):
            return literal_text(kind, datum)
        case Call():
            return _call_text(expression, names)
        case Case(branches, otherwise):
            whens = [f"WHEN {_expression_text(a, names)} THEN {_expression_text(b, names)}" for a, b in branches]
            return f"CASE {' '.join(whens)} ELSE {_expression_text(otherwise, names)} END"
        case Subquery(relation=Constant(rows=rows), operands=operands) if operands:
            return f"({', '.join(_expression_text(one, names) for one in operands)}) IN ({counted(len(rows), 'row')})"
        case OuterColumn():
            return "a value of the row"
    return "a subquery"


def _call_text(call: Call, names: Sequence[str]) -> str:
    symbol = function_named(call.function).symbol
    if symbol in _MIRRORED and isinstance(call.arguments[0], Literal):
        symbol, call = _MIRRORED[symbol], replace(call, arguments=call.arguments[::-1])
    if symbol in ("and", "or"):
        return _joined(symbol, call.arguments, names)
    parts = [_expression_text(one, names) for one in call.arguments]
    nested = [
        f"({part})" if isinstance(one, Call) and len(one.arguments) > 1 else part
        for one, part in zip(call.arguments, parts, strict=True)
    ]
    if symbol == "in":
        values = parts[1:]
        more = f", and {len(values) - _SHOWN_VALUES:,} more" if len(values) > _SHOWN_VALUES else ""
        return f"{nested[0]} IN ({', '.join(values[:_SHOWN_VALUES])}{more})"
    if symbol == "not":
        return f"NOT {nested[0]}"
    if symbol.startswith("is ") and len(parts) == 1:
        return f"{nested[0]} {symbol.upper()}"
    if len(parts) == 2 and (not symbol[0].isalpha() or " " in symbol):
        return f"{nested[0]} {symbol.upper()} {nested[1]}"
    return f"{symbol}({', '.join(parts)})"


def _is_false(expression: Expression) -> bool:
    """Return whether an expression is an `IS NULL` of a value other than NULL."""
    match expression:
        case Call("is_null", (Literal(datum),)):
            return datum is not None
    return False
