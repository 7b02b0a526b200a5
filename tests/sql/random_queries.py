"""Random queries in the text of SQL, whose rows do not depend on the order in which rows are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

from random_expressions import KINDS, Expressions, Named, Scope

Columns = tuple[Named, ...]

_RANGES = {
    "int": ("1", "2", "0"),
    "date": ("INTERVAL '3 days'", "INTERVAL '0'", "INTERVAL '1 month'"),
    "timestamp": ("INTERVAL '26 hours'", "INTERVAL '1 year 1 day'"),
    "numeric": ("0.5", "1", "100.25"),
    "float8": ("0.25", "1", "0"),
    "interval": ("INTERVAL '12 hours'", "INTERVAL '1 day'"),
}
"""Distances of RANGE by the type of the column in ORDER BY."""


@dataclass(frozen=True)
class Query:
    """A query, and the names and types of its columns."""

    text: str
    columns: Columns


@dataclass
class Queries:
    """Makes queries over relations.

    Attributes:
        random: by which is chosen.
        relations: columns by the name of the relation.
        is_maintained: whether only what a maintained view may hold is made.
        is_temporal: whether WHERE may compare `now()` with columns.
    """

    random: Random
    relations: Mapping[str, Columns]
    is_maintained: bool = False
    is_temporal: bool = False
    expressions: Expressions = field(init=False)
    _number: int = 0
    _names: dict[str, Columns] = field(default_factory=dict)
    _budget: int = 6

    def __post_init__(self) -> None:
        self.expressions = Expressions(self.random, self)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def query(self, depth: int = 2) -> Query:
        """A query of a few columns of random types."""
        self._names, self._budget = {}, 6
        kinds = self.random.choices(["int", "int", "text", *KINDS], k=self.random.randrange(1, 5))
        return self._of(kinds, (), depth)

    def single(self, kind: str, scope: Scope) -> str:
        """A query of one column, at most one row: an aggregate, or the first row of a total order."""
        outer = _plain(scope)
        with self._spent():
            if self.chance(0.5) and self._budget > 0:
                return f"{self._of([kind], outer, 0).text} ORDER BY 1 LIMIT 1"
            source, columns = self._from(outer, 0)
            inner = Scope(columns, outer)
            where = f" WHERE {self.expressions.expression('boolean', inner, 1)}" if self.chance(0.6) else ""
            made = self.expressions.aggregate(kind, Scope((), (), columns), 1)
            if made is None:
                return f"SELECT {self.expressions.literal(kind)} FROM {source}{where} LIMIT 1"
            return f"SELECT {made} FROM {source}{where}"

    def several(self, kind: str, scope: Scope) -> str:
        """A query of one column."""
        with self._spent():
            return self._of([kind], _plain(scope), 0 if self.chance(0.7) else 1).text

    @contextmanager
    def _spent(self) -> Iterator[None]:
        self._budget -= 1
        subqueries, self.expressions.subqueries = self.expressions.subqueries, self if self._budget > 0 else None
        try:
            yield
        finally:
            self.expressions.subqueries = subqueries

    def _alias(self) -> str:
        self._number += 1
        return f"r{self._number}"

    def _of(self, kinds: Sequence[str], outer: Columns, depth: int) -> Query:
        """A query whose columns have given types."""
        makers = [(6, self._select), (3, self._grouped)]
        if depth > 0:
            twice = [self._set_operation, self._with, self._windowed, self._top, self._distinct, self._unnested]
            makers += [(2, maker) for maker in twice]
            makers += [(1, self._distinct_on), (1, self._values), (1, self._ties)]
        made = self.random.choices([maker for _, maker in makers], [weight for weight, _ in makers])[0]
        return made(kinds, outer, depth)

    # FROM

    def _from(self, outer: Columns, depth: int) -> tuple[str, Columns]:
        """The clause behind FROM, and the columns of all of its items."""
        text, columns = self._item(outer, (), depth)
        for _ in range(self.random.choice([0, 0, 0, 1, 1, 2]) if depth > 0 else self.random.choice([0, 0, 0, 1])):
            kind = self.random.choice(["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "CROSS JOIN"])
            is_lateral = kind in {"JOIN", "LEFT JOIN", "CROSS JOIN"} and self.chance(0.3)
            other, more = self._item(outer, columns if is_lateral else (), depth - 1)
            text += f" {kind} {other}"
            if kind != "CROSS JOIN":
                text += f" ON {self._condition(columns, more, outer, is_full=kind == 'FULL JOIN')}"
            columns += more
        return text, columns

    def _condition(self, left: Columns, right: Columns, outer: Columns, *, is_full: bool) -> str:
        pairs = [(one, other) for one in left for other in right if one.kind == other.kind]
        one, other = self.random.choice(pairs) if pairs else (Named("1", "int"), Named("1", "int"))
        equation = f"{one.text} = {other.text}"
        if is_full or self.chance(0.6):
            return equation
        predicate = self.expressions.expression("boolean", Scope(left + right, outer), 1)
        return f"{equation} AND {predicate}" if self.chance(0.6) else predicate

    def _item(self, outer: Columns, lateral: Columns, depth: int) -> tuple[str, Columns]:
        alias = self._alias()
        names = {**self.relations, **self._names}
        choice = self.random.random()
        if lateral or choice < 0.08:
            return self._function(alias, outer + lateral, lateral, depth)
        if choice < 0.3 and depth > 0:
            kinds = self.random.choices(["int", "text", *KINDS], k=self.random.randrange(1, 4))
            return self._derived(self._of(kinds, (), depth - 1), alias, "")
        if choice < 0.36:
            query = self._values(["int", "text"], (), 0)
            return f"({query.text}) AS {alias} (a, b)", (Named(f"{alias}.a", "int"), Named(f"{alias}.b", "text"))
        if choice < 0.42 and depth > 0:
            return self._row(alias, depth)
        name = self.random.choice([*names])
        return f"{name} AS {alias}", tuple(Named(f"{alias}.{column.text}", column.kind) for column in names[name])

    def _row(self, alias: str, depth: int) -> tuple[str, Columns]:
        """A subquery with one column that is a row, of which the fields are the columns."""
        query = self._of(self.random.choices(["int", "text", *KINDS], k=2), (), depth - 1)
        fields = ", ".join(column.text for column in query.columns)
        columns = tuple(
            Named(f"({alias}.r).f{number}", column.kind) for number, column in enumerate(query.columns, start=1)
        )
        return f"(SELECT ROW({fields}) AS r FROM ({query.text}) AS {alias}q) AS {alias}", columns

    def _derived(self, query: Query, alias: str, word: str) -> tuple[str, Columns]:
        columns = tuple(Named(f"{alias}.{column.text}", column.kind) for column in query.columns)
        return f"{word}({query.text}) AS {alias}", columns

    def _function(self, alias: str, outer: Columns, lateral: Columns, depth: int) -> tuple[str, Columns]:
        """A function that returns rows, or a subquery that names items before it."""
        scope = Scope(lateral)
        if lateral and self.chance(0.5):
            with self._spent():
                query = self._of(["int", "text"][: self.random.randrange(1, 3)], outer, max(0, depth - 1))
            return self._derived(query, alias, "LATERAL ")
        made, kind = self.random.choice(
            [
                ("generate_series(1, {int} % 4)", "int"),
                ("generate_series({int} % 3, 4, 2)", "int"),
                ("unnest({int[]})", "int"),
                ("unnest({text[]})", "text"),
                ("unnest({numeric(6,2)[]})", "numeric"),
                ("jsonb_array_elements(CASE jsonb_typeof({jsonb}) WHEN 'object' THEN '[1, 2]'::jsonb END)", "jsonb"),
                ("regexp_split_to_table({text}, '[ ]')", "text"),
            ]
        )
        text = self.expressions.fill(made, scope, 1)
        if self.chance(0.2):
            other = self.expressions.fill("generate_series(1, {int} % 3), unnest({text[]})", scope, 1)
            columns = (Named(f"{alias}.x", kind), Named(f"{alias}.y", "int"), Named(f"{alias}.z", "text"))
            return f"ROWS FROM ({text}, {other}) AS {alias} (x, y, z)", columns
        if self.chance(0.3):
            return f"{text} WITH ORDINALITY AS {alias} (x, n)", (
                Named(f"{alias}.x", kind),
                Named(f"{alias}.n", "bigint"),
            )
        return f"{text} AS {alias} (x)", (Named(f"{alias}.x", kind),)

    def _where(self, scope: Scope) -> str:
        parts = [self.expressions.expression("boolean", scope, 2)] if self.chance(0.6) else []
        times = scope.of("timestamptz")
        if self.is_temporal and times:
            parts += self.random.sample(
                [self._temporal(self.random.choice(times)) for _ in range(2)], self.random.choice([1, 1, 2])
            )
        return f" WHERE {' AND '.join(parts)}" if parts else ""

    def _temporal(self, column: str) -> str:
        interval = f"INTERVAL '{self.random.choice([0, 1, 5, 40, 700])} ms'"
        return self.random.choice(
            [
                f"{column} {self.random.choice(['<', '<=', '>', '>='])} now()",
                f"now() - {interval} {self.random.choice(['<', '<=', '>', '>='])} {column}",
                f"now() - {column} {self.random.choice(['<', '<=', '>'])} {interval}",
                f"now() BETWEEN {column} AND {column} + {interval}",
                f"date_trunc('second', now()) >= {column}",
                f"NOT (now() < {column} - {interval})",
            ]
        )

    # Queries

    def _outputs(self, expressions: Sequence[tuple[str, str]]) -> tuple[str, Columns]:
        """A select list, and its columns."""
        texts = [f"{text} AS c{number}" for number, (text, _) in enumerate(expressions, 1)]
        return ", ".join(texts), tuple(Named(f"c{number}", kind) for number, (_, kind) in enumerate(expressions, 1))

    def _select(self, kinds: Sequence[str], outer: Columns, depth: int) -> Query:
        source, columns = self._from(outer, depth)
        scope = Scope(columns, outer)
        made = [(self.expressions.expression(kind, scope, 2), kind) for kind in kinds]
        outputs, names = self._outputs(made)
        return Query(f"SELECT {outputs} FROM {source}{self._where(scope)}", names)

    def _grouped(self, kinds: Sequence[str], outer: Columns, depth: int) -> Query:
        source, columns = self._from(outer, depth)
        scope = Scope(columns, outer)
        keys = self._keys(columns)
        grouped = Scope(keys, outer, columns)
        group = self._group_by([key.text for key in keys])
        made = [(self.expressions.expression(kind, grouped, 2), kind) for kind in kinds]
        outputs, names = self._outputs(made)
        having = f" HAVING {self.expressions.expression('boolean', grouped, 1)}" if self.chance(0.25) else ""
        return Query(f"SELECT {outputs} FROM {source}{self._where(scope)}{group}{having}", names)

    def _keys(self, columns: Columns) -> Columns:
        keys = []
        for column in self.random.sample(columns, min(len(columns), self.random.randrange(3))):
            if self.chance(0.2):
                text = self.expressions.fill(
                    {"int": "({int} % 2)", "text": "lower({text})"}.get(column.kind, ""), Scope((column,)), 0
                )
                if column.text in text:
                    keys.append(Named(text, column.kind))
                    continue
            keys.append(column)
        return tuple(keys)

    def _group_by(self, keys: Sequence[str]) -> str:
        listed = ", ".join(keys)
        if not keys:
            return self.random.choice(["", "", " GROUP BY ()"])
        forms = [f" GROUP BY {listed}"] * 5 + [f" GROUP BY ROLLUP ({listed})", f" GROUP BY CUBE ({listed})"]
        forms.append(f" GROUP BY GROUPING SETS (({listed}), ({keys[0]}), ())")
        forms.append(f" GROUP BY {keys[0]}, ROLLUP ({listed})")
        return self.random.choice(forms)

    def _set_operation(self, kinds: Sequence[str], outer: Columns, depth: int) -> Query:
        left, right = self._of(kinds, outer, depth - 1), self._of(kinds, outer, depth - 1)
        word = self.random.choice(["UNION", "UNION ALL", "INTERSECT", "EXCEPT", "EXCEPT ALL", "INTERSECT ALL"])
        return Query(f"({left.text}) {word} ({right.text})", left.columns)

    def _with(self, kinds: Sequence[str], outer: Columns, depth: int) -> Query:
        name = f"w{self._alias()}"
        inner = self._of(self.random.choices(["int", "text", *KINDS], k=3), (), depth - 1)
        before = dict(self._names)
        self._names[name] = inner.columns
        try:
            query = self._of(kinds, outer, depth - 1)
        finally:
            self._names = before
        word = self.random.choice(["", "", "MATERIALIZED ", "NOT MATERIALIZED "])
        return Query(f"WITH {name} AS {word}({inner.text}) {_operand(query.text)}", query.columns)

    def _windowed(self, kinds: Sequence[str], outer: Columns, depth: int) -> Query:
        source, columns = self._from(outer, depth - 1)
        scope = Scope(columns, outer)
        made = []
        for kind in kinds:
            window = self._window(kind, columns) if self.chance(0.6) else None
            made.append((window or self.expressions.expression(kind, scope, 1), kind))
        outputs, names = self._outputs(made)
        return Query(f"SELECT {outputs} FROM {source}{self._where(scope)}", names)

    def _window(self, kind: str, columns: Columns) -> str | None:
        """A function over a window of a total order, or one that does not depend on the order of equals."""
        partition = f"PARTITION BY {self.random.choice(columns).text} " if self.chance(0.5) else ""
        own = [column.text for column in columns if column.kind == kind]
        ranged = [column for column in columns if column.kind in _RANGES]
        if ranged and self.chance(0.4):
            return self._ranged(kind, self.random.choice(ranged), own, partition)
        order = "ORDER BY " + ", ".join(f"{column.text} {self._direction()}" for column in columns)
        if kind == "bigint" and self.chance(0.6):
            name = self.random.choice(["row_number()", "rank()", "dense_rank()"])
            return f"{name} OVER ({partition}{order})"
        if kind == "float8" and self.chance(0.6):
            return f"{self.random.choice(['percent_rank()', 'cume_dist()'])} OVER ({partition}{order})"
        if not own:
            return None
        text = self.random.choice(own)
        if self.chance(0.4):
            call = self.random.choice([f"lag({text})", f"lead({text}, 2)", f"lag({text}, 1, {text})"])
            return f"{call} OVER ({partition}{order})"
        call = self.random.choice([f"first_value({text})", f"last_value({text})", f"nth_value({text}, 2)"])
        return f"{call} OVER ({partition}{order} {self._frame(self.random.choice(['ROWS', 'GROUPS']), 'int')})"

    def _ranged(self, kind: str, column: Named, own: Sequence[str], partition: str) -> str | None:
        functions = {"bigint": ["count(*)"], column.kind: [f"first_value({column.text})", f"last_value({column.text})"]}
        choices = functions.get(kind, [])
        if kind in {"int", "text", "date"}:
            choices += [f"{name}({text})" for name in ("min", "max") for text in own]
        order = f"ORDER BY {column.text} {self._direction()}"
        frame = self._frame("RANGE", column.kind)
        return f"{self.random.choice(choices)} OVER ({partition}{order} {frame})" if choices else None

    def _direction(self) -> str:
        return self.random.choice(["", "ASC", "DESC", "NULLS FIRST", "DESC NULLS LAST"])

    def _frame(self, unit: str, kind: str) -> str:
        distance = self.random.choice(_RANGES[kind])
        begins = [
            ("UNBOUNDED PRECEDING", 0),
            (f"{distance} PRECEDING", 1),
            ("CURRENT ROW", 2),
            (f"{distance} FOLLOWING", 3),
        ]
        begin, place = self.random.choice(begins)
        ends = [*begins[1:], ("UNBOUNDED FOLLOWING", 4)]
        end = self.random.choice([text for text, at in ends if at >= place])
        exclude = self.random.choice(
            ["", "", " EXCLUDE CURRENT ROW", " EXCLUDE TIES", " EXCLUDE GROUP", " EXCLUDE NO OTHERS"]
        )
        return f"{unit} BETWEEN {begin} AND {end}{exclude}"

    def _order(self, count: int) -> str:
        return "ORDER BY " + ", ".join(f"{number} {self._direction()}" for number in range(1, count + 1))

    def _top(self, kinds: Sequence[str], outer: Columns, depth: int) -> Query:
        query = self._of(kinds, outer, depth - 1)
        offset = self.random.choice(["", "", " OFFSET 1"])
        limit = f" LIMIT {self.random.randrange(4)}{offset}"
        return Query(f"SELECT * FROM ({query.text}) AS {self._alias()} {self._order(len(kinds))}{limit}", query.columns)

    def _ties(self, kinds: Sequence[str], outer: Columns, depth: int) -> Query:
        query = self._of(kinds, outer, depth - 1)
        fetch = f"FETCH FIRST {self.random.randrange(1, 4)} ROWS WITH TIES"
        return Query(
            f"SELECT * FROM ({query.text}) AS {self._alias()} ORDER BY 1 {self._direction()} {fetch}", query.columns
        )

    def _distinct(self, kinds: Sequence[str], outer: Columns, depth: int) -> Query:
        query = self._select(kinds, outer, depth - 1)
        return Query(query.text.replace("SELECT ", "SELECT DISTINCT ", 1), query.columns)

    def _distinct_on(self, kinds: Sequence[str], outer: Columns, depth: int) -> Query:
        query = self._of(kinds, outer, depth - 1)
        return Query(
            f"SELECT DISTINCT ON (c1) * FROM ({query.text}) AS {self._alias()} {self._order(len(kinds))}", query.columns
        )

    def _values(self, kinds: Sequence[str], outer: Columns, depth: int) -> Query:
        rows = [
            ", ".join(f"({self.expressions.literal(kind)})::{kind}" for kind in kinds)
            for _ in range(self.random.randrange(1, 4))
        ]
        names = tuple(Named(f"c{number}", kind) for number, kind in enumerate(kinds, 1))
        listed = ", ".join(name.text for name in names)
        return Query(
            f"SELECT * FROM (VALUES {', '.join(f'({row})' for row in rows)}) AS {self._alias()} ({listed})", names
        )

    def _unnested(self, kinds: Sequence[str], outer: Columns, depth: int) -> Query:
        """Functions that return rows, in the select list."""
        source, columns = self._from(outer, depth - 1)
        scope = Scope(columns, outer)
        forms = {
            "int": ("unnest({int[]})", "generate_series(1, {int} % 4)"),
            "text": ("unnest({text[]})", "regexp_split_to_table({text}, ' ')"),
            "jsonb": ("jsonb_array_elements(CASE jsonb_typeof({jsonb}) WHEN 'object' THEN '[1, [2]]'::jsonb END)",),
            "numeric": ("unnest({numeric(6,2)[]})",),
        }
        made = []
        for kind in kinds:
            if kind in forms and self.chance(0.6):
                made.append((self.expressions.fill(self.random.choice(forms[kind]), scope, 1), kind))
            else:
                made.append((self.expressions.expression(kind, scope, 1), kind))
        outputs, names = self._outputs(made)
        return Query(f"SELECT {outputs} FROM {source}{self._where(scope)}", names)


def _plain(scope: Scope) -> Columns:
    """The columns that a subquery may name: a grouped expression it may not."""
    return tuple(column for column in (*scope.columns, *scope.outer) if "(" not in column.text)


def _operand(text: str) -> str:
    """A query behind WITH, which has none of its own."""
    return f"SELECT * FROM ({text}) AS q" if text.startswith("WITH") else text
