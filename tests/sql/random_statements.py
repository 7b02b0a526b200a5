"""Random statements that define and write relations, as far as their outcome follows from the statements before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from random_expressions import LITERALS, Named, Scope
from random_queries import Columns, Queries

DECLARED = {
    "int": "int",
    "smallint": "int",
    "bigint": "bigint",
    "numeric(6,2)": "numeric",
    "numeric": "numeric",
    "float8": "float8",
    "text": "text",
    "varchar(3)": "text",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "interval": "interval",
    "jsonb": "jsonb",
    "int[]": "int[]",
    "int[][]": "int[][]",
    "text[]": "text[]",
    "varchar(3)[]": "varchar(3)[]",
    "numeric(6,2)[]": "numeric(6,2)[]",
    "uuid": "uuid",
    "time": "time",
    "bytea": "bytea",
    "char(4)": "char(4)",
    "few": "few",
}
"""Types of columns, with the type that expressions over them have."""

PRELUDE = ("CREATE DOMAIN few AS int CHECK (value < 1000)",)


@dataclass(frozen=True)
class Field:
    """A column of a table.

    Attributes:
        name: its name.
        declared: its type in CREATE TABLE.
        is_written: whether INSERT and UPDATE may name it.
        is_hidden: whether its values are not compared: numbers of an identity may differ after errors.
    """

    name: str
    declared: str
    is_written: bool = True
    is_hidden: bool = False

    @property
    def kind(self) -> str:
        return DECLARED[self.declared]

    def fitted(self, value: str) -> str:
        """An expression whose value fits: PostgreSQL may evaluate a constant that we need not look at."""
        forms = {"varchar(3)": "left({}, 3)", "numeric(6,2)": "({} % 1000)", "smallint": "({} % 1000)"}
        return (forms | {"few": "({} % 1000)::few"}).get(self.declared, "{}").format(value)


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: its name.
        fields: its columns, in order.
        keys: names of the columns of each unique key.
    """

    name: str
    fields: tuple[Field, ...]
    keys: tuple[tuple[str, ...], ...] = ()

    @property
    def columns(self) -> Columns:
        return tuple(Named(one.name, one.kind) for one in self.fields if not one.is_hidden)

    @property
    def listed(self) -> str:
        """All columns whose values are compared."""
        return ", ".join(column.text for column in self.columns)

    @property
    def written(self) -> list[Field]:
        return [one for one in self.fields if one.is_written]


@dataclass(frozen=True)
class Statement:
    """A statement, and what it does to the schema if it succeeds."""

    text: str
    effect: Callable[[Schema], None] | None = None


@dataclass
class Schema:
    """Relations so far.

    Attributes:
        tables: by name.
        views: columns by name.
        maintained: columns by name, of views that are maintained.
        saved: the schema at the beginning of the transaction, and at each savepoint.
    """

    tables: dict[str, Table] = field(default_factory=dict)
    views: dict[str, Columns] = field(default_factory=dict)
    maintained: dict[str, Columns] = field(default_factory=dict)
    saved: list[tuple[str, Schema]] = field(default_factory=list)
    number: int = 0

    def relations(self) -> dict[str, Columns]:
        return {name: table.columns for name, table in self.tables.items()} | self.views | self.maintained

    def name(self, prefix: str) -> str:
        self.number += 1
        return f"{prefix}{self.number}"

    def copy(self) -> Schema:
        return Schema(dict(self.tables), dict(self.views), dict(self.maintained))

    def restore(self, other: Schema) -> None:
        self.tables, self.views, self.maintained = dict(other.tables), dict(other.views), dict(other.maintained)


@dataclass
class Statements:
    """Makes statements.

    Attributes:
        random: by which is chosen.
        schema: the relations, which `apply` changes.
        is_temporal: whether views may have temporal filters.
    """

    random: Random
    schema: Schema
    is_temporal: bool = False

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def next(self) -> Statement:
        """A random statement."""
        makers: list[tuple[int, Callable[[], Statement | None]]] = [
            (10, self._insert),
            (3, self._insert_query),
            (4, self._upsert),
            (6, self._update),
            (3, self._update_row),
            (3, self._update_from),
            (5, self._delete),
            (2, self._delete_using),
            (4, self._merge),
            (3, self._with_write),
            (1, self._truncate),
            (2, self._index),
            (4, self._alter),
            (2, self._view),
            (1, self._replace_view),
            (1, self._drop_view),
            (3, self._transaction),
            (1, self._temporary),
        ]
        kinds = [make for _, make in makers]
        while True:
            made = self.random.choices(kinds, [weight for weight, _ in makers])[0]()
            if made is not None:
                return made

    def apply(self, statement: Statement) -> None:
        """Follow a statement that has succeeded."""
        if statement.effect is not None:
            statement.effect(self.schema)

    # Definitions

    def table(self, word: str = "") -> Statement:
        """CREATE TABLE."""
        name = self.schema.name("t")
        declared = self.random.choices([*DECLARED], k=self.random.randrange(1, 5))
        fields = [Field("k", self.random.choice(["int", "int", "int", "bigint"]))]
        fields += [Field(f"a{number}", kind) for number, kind in enumerate(declared, 1)]
        texts = [self._column(one) for one in fields]
        keys: list[tuple[str, ...]] = []
        if self.chance(0.6):
            keys.append(("k",))
            texts[0] += self.random.choice([" PRIMARY KEY", " PRIMARY KEY", " UNIQUE"])
        if self.chance(0.2) and fields[1].declared not in {"jsonb"}:
            keys.append(("k", "a1"))
            texts.append("UNIQUE (k, a1)")
        if self.chance(0.2):
            fields.append(Field("g", "int", is_written=False))
            texts.append(f"g int GENERATED ALWAYS AS ({self._generated(fields)}) STORED")
        if self.chance(0.15):
            fields.append(Field("i", "int", is_written=False, is_hidden=True))
            texts.append("i int GENERATED ALWAYS AS IDENTITY")
        if self.chance(0.2):
            texts.append(f"CHECK ({self._over(fields).expressions.expression('boolean', Scope(_columns(fields)), 1)})")
        if self.chance(0.35) and (reference := self._reference()):
            texts.append(reference)
        table = Table(name, tuple(fields), tuple(keys))

        def create(schema: Schema) -> None:
            schema.tables[name] = table

        return Statement(f"CREATE {word}TABLE {name} ({', '.join(texts)})", create)

    def _column(self, one: Field) -> str:
        default = (
            f" DEFAULT {self.random.choice(LITERALS[one.kind])}" if self.chance(0.2) and one.kind != "interval" else ""
        )
        return f"{one.name} {one.declared}{default}{' NOT NULL' if self.chance(0.1) else ''}"

    def _over(self, fields: Sequence[Field]) -> Queries:
        """Expressions over columns of one table, without subqueries."""
        queries = self.queries()
        queries.expressions.subqueries = None
        queries.expressions.excluded = (
            "to_char",
            "position",
            "strpos",
            "::text",
            "timestamptz",
            "format",
            "concat_ws",
            "array_to_string",
            "convert_to",
            "to_jsonb",
            "jsonb_build",
        )
        return queries

    def _generated(self, fields: Sequence[Field]) -> str:
        return self._over(fields).expressions.expression("int", Scope(_columns(fields)), 1)

    def _reference(self) -> str | None:
        targets = [
            table for table in self.schema.tables.values() if ("k",) in table.keys and table.fields[0].declared == "int"
        ]
        if not targets:
            return None
        target = self.random.choice(targets)
        actions = [
            "",
            " ON DELETE CASCADE",
            " ON DELETE SET NULL",
            " ON UPDATE CASCADE",
            " ON DELETE SET NULL ON UPDATE CASCADE",
        ]
        actions += [" ON DELETE RESTRICT", " DEFERRABLE INITIALLY DEFERRED", " ON DELETE CASCADE DEFERRABLE"]
        return f"FOREIGN KEY (k) REFERENCES {target.name} (k){self.random.choice(actions)}"

    def queries(self, *, is_maintained: bool = False) -> Queries:
        return Queries(self.random, self.schema.relations(), is_maintained, self.is_temporal and is_maintained)

    def maintained(self) -> Statement:
        """CREATE MATERIALIZED VIEW."""
        name = self.schema.name("m")
        query = self.queries(is_maintained=True).query()

        def create(schema: Schema) -> None:
            schema.maintained[name] = query.columns

        return Statement(f"CREATE MATERIALIZED VIEW {name} AS {query.text}", create)

    def select(self) -> Statement:
        """A query."""
        return Statement(self.queries().query().text)

    def _view(self) -> Statement:
        name = self.schema.name("v")
        query = self.queries().query()

        def create(schema: Schema) -> None:
            schema.views[name] = query.columns

        return Statement(f"CREATE VIEW {name} AS {query.text}", create)

    def _replace_view(self) -> Statement | None:
        if not self.schema.views:
            return None
        name = self.random.choice([*self.schema.views])
        columns = self.schema.views[name]
        query = self.queries()._of([column.kind for column in columns], (), 1)
        return Statement(f"CREATE OR REPLACE VIEW {name} AS {query.text}")

    def _drop_view(self) -> Statement | None:
        if not self.schema.views:
            return None
        name = self.random.choice([*self.schema.views])

        def drop(schema: Schema) -> None:
            del schema.views[name]

        return Statement(f"DROP VIEW {name}", drop)

    def _index(self) -> Statement | None:
        table = self._table()
        name = self.schema.name("i")
        one = self.random.choice(table.fields)
        if one.kind in {"jsonb", "interval"}:
            return None
        form = {"text": f"lower({one.name})", "int": f"abs({one.name})"}.get(one.kind)
        part = f"({form})" if form and self.chance(0.5) else one.name
        where = f" WHERE {one.name} IS NOT NULL" if self.chance(0.3) else ""
        unique = "UNIQUE " if self.chance(0.25) else ""
        return Statement(f"CREATE {unique}INDEX {name} ON {table.name} ({part}){where}")

    def _temporary(self) -> Statement:
        return self.table(self.random.choice(["TEMPORARY ", "TEMP "]))

    def _transaction(self) -> Statement:
        schema = self.schema
        if not schema.saved:

            def begin(schema: Schema) -> None:
                schema.saved.append(("", schema.copy()))

            return Statement("BEGIN", begin)
        choice = self.random.random()
        if choice < 0.3:

            def commit(schema: Schema) -> None:
                schema.saved.clear()

            return Statement("COMMIT", commit)
        if choice < 0.45:

            def roll_back(schema: Schema) -> None:
                schema.restore(schema.saved[0][1])
                schema.saved.clear()

            return Statement("ROLLBACK", roll_back)
        points = [name for name, _ in schema.saved if name]
        if choice < 0.7 or not points:
            name = schema.name("s")

            def save(schema: Schema) -> None:
                schema.saved.append((name, schema.copy()))

            return Statement(f"SAVEPOINT {name}", save)
        point = self.random.choice(points)

        def undo(schema: Schema) -> None:
            place = [name for name, _ in schema.saved].index(point)
            schema.restore(schema.saved[place][1])
            del schema.saved[place + 1 :]

        def release(schema: Schema) -> None:
            del schema.saved[[name for name, _ in schema.saved].index(point) :]

        return Statement(f"ROLLBACK TO {point}", undo) if self.chance(0.6) else Statement(f"RELEASE {point}", release)

    # ALTER TABLE

    def _alter(self) -> Statement | None:
        if self.schema.saved:  # PostgreSQL refuses it beside deferred checks
            return None
        table = self._table()
        makers = [self._add_column, self._drop_column, self._rename_column, self._rename_table, self._retype, self._set]
        return self.random.choice(makers)(table)

    def _replaced(self, table: Table, text: str, changed: Table) -> Statement:
        def replace_it(schema: Schema) -> None:
            schema.tables.pop(table.name)
            schema.tables[changed.name] = changed

        return Statement(f"ALTER TABLE {table.name} {text}", replace_it)

    def _add_column(self, table: Table) -> Statement:
        one = Field(self.schema.name("b"), self.random.choice([*DECLARED]))
        return self._replaced(table, f"ADD COLUMN {self._column(one)}", replace(table, fields=(*table.fields, one)))

    def _drop_column(self, table: Table) -> Statement | None:
        if len(table.fields) < 3:
            return None
        one = self.random.choice(table.fields[1:])
        fields = tuple(other for other in table.fields if other != one)
        keys = tuple(key for key in table.keys if one.name not in key)
        return self._replaced(table, f"DROP COLUMN {one.name}", replace(table, fields=fields, keys=keys))

    def _rename_column(self, table: Table) -> Statement:
        one = self.random.choice(table.fields[1:])
        name = self.schema.name("n")
        fields = tuple(replace(other, name=name) if other == one else other for other in table.fields)
        keys = tuple(tuple(name if column == one.name else column for column in key) for key in table.keys)
        return self._replaced(table, f"RENAME COLUMN {one.name} TO {name}", replace(table, fields=fields, keys=keys))

    def _rename_table(self, table: Table) -> Statement:
        name = self.schema.name("t")
        return self._replaced(table, f"RENAME TO {name}", replace(table, name=name))

    def _retype(self, table: Table) -> Statement | None:
        one = self.random.choice(table.fields[1:])
        declared, cast = self.random.choice(
            [
                ("text", f"{one.name}::text"),
                ("bigint", f"length({one.name}::text)"),
                ("numeric(6,2)", "1.5"),
                ("varchar(3)", f"left({one.name}::text, 3)"),
            ]
        )
        if one.kind in {"numeric", "interval", "float8", "jsonb", "numeric(6,2)[]"} or not one.is_written:
            return None
        fields = tuple(replace(other, declared=declared) if other == one else other for other in table.fields)
        text = f"ALTER COLUMN {one.name} DROP DEFAULT, ALTER COLUMN {one.name} TYPE {declared} USING {cast}"
        return self._replaced(table, text, replace(table, fields=fields))

    def _set(self, table: Table) -> Statement:
        one = self.random.choice(table.written)
        literal = self.random.choice(LITERALS[one.kind])
        forms = [f"SET DEFAULT {literal}", "DROP DEFAULT", "SET NOT NULL", "DROP NOT NULL"]
        return Statement(f"ALTER TABLE {table.name} ALTER COLUMN {one.name} {self.random.choice(forms)}")

    # Writes

    def _table(self) -> Table:
        return self.random.choice([*self.schema.tables.values()])

    def _key(self) -> str:
        return str(self.random.randrange(8)) if self.chance(0.92) else "NULL"

    def value(self, one: Field) -> str:
        """A value to write."""
        if one.name == "k":
            return self._key()
        if self.is_temporal and one.kind == "timestamptz" and self.chance(0.9):
            return f"TIMESTAMPTZ 'NOW{self.random.randrange(-300, 3000)}'"
        expressions = self.queries().expressions
        expressions.subqueries = None
        made = expressions.literal(one.kind) if self.chance(0.7) else expressions.expression(one.kind, Scope(()), 2)
        return made if self.chance(0.95) else "DEFAULT"

    def _returning(self, table: Table) -> str:
        if self.chance(0.6):
            return ""
        if self.chance(0.5):
            return f" RETURNING {table.listed}"
        kind = self.random.choice(["int", "text", "boolean"])
        columns = tuple(Named(f"{table.name}.{column.text}", column.kind) for column in table.columns)
        return f" RETURNING {self.queries().expressions.expression(kind, Scope(columns), 2)} AS c"

    def _written(self, table: Table) -> list[Field]:
        """Columns that a statement writes: `k`, and most others."""
        return [one for one in table.written if one.name == "k" or self.chance(0.85)]

    def _rows(self, fields: Sequence[Field]) -> str:
        rows = [", ".join(self.value(one) for one in fields) for _ in range(self.random.choice([1, 1, 2, 4]))]
        return ", ".join(f"({row})" for row in rows)

    def _insert(self) -> Statement:
        table = self._table()
        fields = self._written(table)
        names = ", ".join(one.name for one in fields)
        return Statement(f"INSERT INTO {table.name} ({names}) VALUES {self._rows(fields)}{self._returning(table)}")

    def _source(self, fields: Sequence[Field]) -> str:
        """A query of a key, which is unique, and values."""
        queries = self.queries()
        query = queries._of(["int", *(one.kind for one in fields if one.name != "k")], (), 1)
        return f"SELECT DISTINCT ON (c1) * FROM ({query.text}) AS q {queries._order(len(query.columns))}"

    def _insert_query(self) -> Statement:
        table = self._table()
        fields = self._written(table)
        names = ", ".join(one.name for one in fields)
        conflict = " ON CONFLICT DO NOTHING" if self.chance(0.4) else ""
        return Statement(f"INSERT INTO {table.name} ({names}) {self._source(fields)}{conflict}{self._returning(table)}")

    def _upsert(self) -> Statement | None:
        table = self._table()
        if not table.keys:
            return None
        fields = self._written(table)
        names = ", ".join(one.name for one in fields)
        others = [one for one in table.written if not any(one.name in key for key in table.keys)]
        key = self.random.choice(table.keys)
        if not others or self.chance(0.2) or not {*key} <= {one.name for one in fields}:
            action = self.random.choice(["DO NOTHING", f"({', '.join(key)}) DO NOTHING"])
        else:
            one = self.random.choice(others)
            old = tuple(Named(f"{table.name}.{column.text}", column.kind) for column in table.columns)
            new = tuple(Named(f"excluded.{column.text}", column.kind) for column in table.columns)
            expressions = self.queries().expressions
            where = f" WHERE {expressions.expression('boolean', Scope(old + new), 1)}" if self.chance(0.3) else ""
            value = one.fitted(expressions.expression(one.kind, Scope(old + new), 2))
            action = f"({', '.join(key)}) DO UPDATE SET {one.name} = {value}{where}"
        rows = self._rows(fields)
        return Statement(
            f"INSERT INTO {table.name} ({names}) VALUES {rows} ON CONFLICT {action}{self._returning(table)}"
        )

    def _where(self, table: Table, more: Columns = ()) -> str:
        columns = tuple(Named(f"{table.name}.{column.text}", column.kind) for column in table.columns)
        choices = [f"{table.name}.k = {self._key()}", f"{table.name}.k IN (1, {self._key()})"]
        choices += [self.queries().expressions.expression("boolean", Scope(columns + more), 2)] * 2
        return self.random.choice(choices)

    def _free(self, table: Table) -> list[Field]:
        """Columns of no key: PostgreSQL compares keys after each row."""
        return [one for one in table.written if one.name != "k" and not any(one.name in key for key in table.keys)]

    def _set_clause(self, table: Table, fields: Sequence[Field], more: Columns = ()) -> str:
        columns = tuple(Named(f"{table.name}.{column.text}", column.kind) for column in table.columns)
        expressions = self.queries().expressions
        parts = []
        for one in fields:
            value = one.fitted(expressions.expression(one.kind, Scope(columns + more), 2))
            parts.append(f"{one.name} = {value if self.chance(0.9) else 'DEFAULT'}")
        return ", ".join(parts)

    def _some(self, table: Table) -> list[Field]:
        free = self._free(table)
        return self.random.sample(free, self.random.randrange(1, min(3, len(free)) + 1)) if free else []

    def _update(self) -> Statement | None:
        table = self._table()
        fields = self._some(table)
        if not fields or self.chance(0.15):
            value, other = self._key(), self._key()
            return Statement(f"UPDATE {table.name} SET k = {value} WHERE k = {other}") if ("k",) in table.keys else None
        where = f" WHERE {self._where(table)}" if self.chance(0.8) else ""
        return Statement(f"UPDATE {table.name} SET {self._set_clause(table, fields)}{where}{self._returning(table)}")

    def _update_row(self) -> Statement | None:
        table = self._table()
        free = self._free(table)
        if len(free) < 2:
            return None
        fields = self.random.sample(free, 2)
        columns = tuple(Named(f"{table.name}.{column.text}", column.kind) for column in table.columns)
        queries = self.queries()
        query = queries._of([one.kind for one in fields], columns, 0)
        row = f"({query.text} ORDER BY 1, 2 LIMIT 1)"
        if self.chance(0.3):
            row = f"ROW ({', '.join(queries.expressions.expression(one.kind, Scope(columns), 1) for one in fields)})"
        names = ", ".join(one.name for one in fields)
        return Statement(
            f"UPDATE {table.name} SET ({names}) = {row} WHERE {self._where(table)}{self._returning(table)}"
        )

    def _joined(self) -> tuple[str, Columns]:
        """A query with a unique key, which a write joins."""
        fields = [Field("x", "int"), Field("y", "text")]
        columns = (Named("q.c1", "int"), Named("q.c2", "int"), Named("q.c3", "text"))
        return f"({self._source(fields)}) AS q", columns

    def _update_from(self) -> Statement | None:
        table = self._table()
        fields = self._some(table)
        if not fields:
            return None
        source, columns = self._joined()
        clause = self._set_clause(table, fields, columns)
        where = f"{table.name}.k = q.c1" + (f" AND {self._where(table, columns)}" if self.chance(0.3) else "")
        return Statement(f"UPDATE {table.name} SET {clause} FROM {source} WHERE {where}{self._returning(table)}")

    def _delete(self) -> Statement:
        table = self._table()
        return Statement(f"DELETE FROM {table.name} WHERE {self._where(table)}{self._returning(table)}")

    def _delete_using(self) -> Statement:
        table = self._table()
        source, columns = self._joined()
        where = f"{table.name}.k = q.c1" + (f" AND {self._where(table, columns)}" if self.chance(0.3) else "")
        return Statement(f"DELETE FROM {table.name} USING {source} WHERE {where}{self._returning(table)}")

    def _merge(self) -> Statement:
        table = self._table()
        source, columns = self._joined()
        old = tuple(Named(f"{table.name}.{column.text}", column.kind) for column in table.columns)
        expressions = self.queries().expressions
        clauses = []
        for _ in range(self.random.randrange(1, 4)):
            is_matched = self.chance(0.6)
            scope = Scope(old + columns if is_matched else columns)
            condition = f" AND {expressions.expression('boolean', scope, 1)}" if self.chance(0.5) else ""
            fields = self._some(table)
            if is_matched:
                update = f"UPDATE SET {self._set_clause(table, fields, columns)}" if fields else "DELETE"
                action = self.random.choice([update, update, "DELETE", "DO NOTHING"])
            else:
                written = self._written(table)
                values = [
                    "q.c1" if one.name == "k" else one.fitted(expressions.expression(one.kind, scope, 1))
                    for one in written
                ]
                action = f"INSERT ({', '.join(one.name for one in written)}) VALUES ({', '.join(values)})"
            clauses.append(f"WHEN {'' if is_matched else 'NOT '}MATCHED{condition} THEN {action}")
        return Statement(f"MERGE INTO {table.name} USING {source} ON {table.name}.k = q.c1 {' '.join(clauses)}")

    def _with_write(self) -> Statement | None:
        """A write inside of WITH, whose rows another write or a query has."""
        table, other = self._table(), self._table()
        inner = self.random.choice(
            [
                f"DELETE FROM {table.name} WHERE {self._where(table)} RETURNING {table.name}.k AS x",
                f"INSERT INTO {table.name} (k) VALUES ({self._key()}), ({self._key()}) RETURNING k AS x",
                *(
                    [f"UPDATE {table.name} SET {self._set_clause(table, self._free(table)[:1])} RETURNING k AS x"]
                    * bool(self._free(table))
                ),
            ]
        )
        outer = "SELECT count(*), sum(x) FROM d"
        if other != table and self.chance(0.7):
            outer = self.random.choice(
                [
                    f"INSERT INTO {other.name} (k) SELECT DISTINCT x FROM d ORDER BY 1 ON CONFLICT DO NOTHING",
                    f"DELETE FROM {other.name} USING d WHERE {other.name}.k = d.x RETURNING {other.name}.k",
                ]
            )
        return Statement(f"WITH d AS ({inner}) {outer}")

    def _truncate(self) -> Statement:
        return Statement(f"TRUNCATE {self._table().name}{self.random.choice(['', ' CASCADE', ' RESTART IDENTITY'])}")


def _columns(fields: Sequence[Field]) -> Columns:
    return tuple(Named(one.name, one.kind) for one in fields if one.is_written)
