"""Random expressions in the text of SQL: each has a type, and a value for every row.

Texts are about columns in scope. Expressions cannot fail, except those of a writer with `can_fail`: PostgreSQL may
look at a row that we do not look at, and the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Protocol


@dataclass(frozen=True)
class Named:
    """A column in scope, or of a result.

    Attributes:
        text: how an expression refers to it.
        kind: the type of expressions.
    """

    text: str
    kind: str


LITERALS: dict[str, Sequence[str]] = {
    "int": ("0", "1", "2", "3", "(-1)", "7", "NULL::int"),
    "bigint": ("0::bigint", "5::bigint", "10000000000", "(-3)::bigint", "NULL::bigint"),
    "numeric": ("0.5", "1.25", "(-2.0)", "3::numeric", "100.10", "NULL::numeric"),
    "float8": ("0.5::float8", "1.25::float8", "(-2)::float8", "'NaN'::float8", "NULL::float8", "0::float8"),
    "text": ("'a'::text", "'b'::text", "'A'::text", "''::text", "'ab'::text", "'a b'::text", "'ä'::text", "NULL::text"),
    "boolean": ("true", "false", "NULL::boolean"),
    "date": ("DATE '2024-01-31'", "DATE '2024-02-29'", "DATE '1999-12-31'", "NULL::date"),
    "timestamp": ("TIMESTAMP '2024-01-31 10:00:00'", "TIMESTAMP '2024-02-29 23:59:59.5'", "NULL::timestamp"),
    "timestamptz": ("TIMESTAMPTZ '2024-01-31 10:00:00+00'", "TIMESTAMPTZ '2024-03-01 00:30:00+02'"),
    "interval": (
        "INTERVAL '1 day'",
        "INTERVAL '24 hours'",
        "INTERVAL '90 min'",
        "INTERVAL '36 hours'",
        "NULL::interval",
    ),
    "jsonb": (
        *('\'{"a": 1, "b": [1, 2]}\'::jsonb', "'[1, \"x\", null]'::jsonb", '\'{"a": "x"}\'::jsonb', "'null'::jsonb"),
        *("'15'::jsonb", '\'{"a": {"b": 2}}\'::jsonb', "NULL::jsonb"),
    ),
    "int[]": ("'{1,2}'::int[]", "'{}'::int[]", "'{3,NULL,1}'::int[]", "NULL::int[]", "ARRAY[2,2]"),
    "int[][]": (
        "'{{1,2},{3,4}}'::int[][]",
        "ARRAY[[3,NULL],[1,2]]",
        "'{{2,2}}'::int[]",
        "'{}'::int[][]",
        "NULL::int[][]",
    ),
    "text[]": ("'{a,b}'::text[]", "'{}'::text[]", "'{b,NULL}'::text[]", "NULL::text[]"),
    "varchar(3)[]": ("'{a,b}'::varchar(3)[]", "'{b,NULL}'::varchar(3)[]"),
    "few": ("1::few", "7::few", "NULL::few"),
    "numeric(6,2)[]": ("'{1.5,2}'::numeric(6,2)[]", "'{}'::numeric(6,2)[]", "NULL::numeric(6,2)[]"),
    "uuid": ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid", "'00000000-0000-0000-0000-000000000001'::uuid"),
    "time": ("TIME '10:00'", "TIME '23:59:59.25'", "NULL::time"),
    "bytea": ("'\\x01ff'::bytea", "'\\x'::bytea", "NULL::bytea"),
    "char(4)": ("'ab'::char(4)", "'a'::char(4)", "''::char(4)", "NULL::char(4)"),
}
KINDS = tuple(LITERALS)
ALIASES = {"numeric[]": "numeric(6,2)[]"}

# For each type, forms in which `{type}` stands for an expression of the type.
FORMS: dict[str, Sequence[str]] = {
    "int": (
        *("({few} + 1)", "{few}::int", "({int} + 1)", "({int} - {int} % 5)", "abs({int} % 9)", "length({text})", "({int} % nullif({int}, 0))"),
        *("(({int} % 50) / nullif({int}, 0))", "coalesce({int}, 0)", "nullif({int}, {int})", "greatest({int}, 1)"),
        *("extract(year FROM {date})::int", "cardinality({int[]})", "array_length({text[]}, 1)", "{boolean}::int"),
        *("position('a' IN {text})", "array_position({int[]}, {int})", "({int[]})[1]", "({date} - DATE '2024-01-01')"),
        *("({int[][]})[1][2]", "({int[][]})[{int}][1]", "cardinality({int[][]})", "array_length({int[][]}, 1)"),
        *("least({int}, {int})", "ascii({text})", "length({bytea})", "(CASE {int} WHEN 1 THEN 2 WHEN 2 THEN {int} END)"),
        *("extract(hour FROM {time})::int", "sign({int})::int", "({int} & 3)", "num_nulls({int}, {text})", "strpos({text}, 'b')"),
    ),
    "bigint": ("{int}::bigint", "({int}::bigint * 3)", "coalesce({bigint}, {int})", "({bigint} % 1000)", "-({bigint} % 7)"),
    "numeric": (
        *("{int}::numeric", "({numeric} + {int})", "round({numeric}, 1)", "abs({numeric})", "({int} * 1.5)"),
        *("coalesce({numeric}, 0)", "({numeric} - {numeric})", "({numeric[]})[1]", "trunc({numeric})", "floor({numeric})"),
        *("round({numeric} / nullif({numeric}, 0), 3)", "greatest({numeric}, 1)", "({numeric(6,2)[]})[1]", "mod({numeric}, 7)"),
        "extract(epoch FROM {timestamp})",
    ),
    "float8": ("{int}::float8", "({float8} + {int})", "abs({float8})", "({int} / 4.0::float8)", "coalesce({float8}, 0)"),
    "text": (
        *("({text} || {text})", "lower({text})", "upper({text})", "left({text}, 1)", "replace({text}, 'a', 'xy')"),
        *("coalesce({text}, '-')", "{int}::text", "{boolean}::text", "{date}::text", "to_char({date}, 'YYYY-MM')"),
        *("({jsonb} ->> 'a')", "trim({text})", "concat_ws('/', {text}, {text})", "split_part({text}, ' ', 1)"),
        *("array_to_string({text[]}, ',', '?')", "({text[]})[1]", "array_to_string({varchar(3)[]}, '')", "format('%s-%s', {int}, {text})", "reverse({text})"),
        *("substr({text}, 2)", "{timestamp}::text", "{uuid}::text", "{jsonb}::text", "md5({text})", "initcap({text})"),
        *("CASE WHEN {boolean} THEN {text} ELSE {text} END", "{char(4)}::text", "{int[]}::text", "{int[][]}::text"),
        *("regexp_replace({text}, '[ab]+', '<\\&>')", "rpad({text}, 3, '.')", "jsonb_typeof({jsonb})", "quote_literal({text})"),
        *("nullif({text}, '')", "encode({bytea}, 'hex')", "{time}::text", "lpad({int}::text, 3, '0')", "({char(4)} || {text})"),
    ),
    "boolean": (
        *("({int} {cmp} {int})", "({text} {cmp} {text})", "({numeric} {cmp} {int})", "({date} {cmp} {date})"),
        *("({int} = {int})", "({text} = {text})", "({text} LIKE 'a%')", "({int} IN (1, 2, {int}))", "({int} BETWEEN 0 AND {int})"),
        *("({int} IS NULL)", "({text} IS NOT NULL)", "NOT {boolean}", "({boolean} AND {boolean})", "({boolean} OR {boolean})"),
        *("({int} IS DISTINCT FROM {int})", "({boolean} IS TRUE)", "({boolean} IS UNKNOWN)", "({int} = ANY ({int[]}))"),
        *("({int[]} @> {int[]})", "({jsonb} ? 'a')", "({jsonb} @> '{{\"a\": 1}}')", "({int}, {text}) = ({int}, {text})"),
        *("({jsonb} @? '$.b[*] ? (@ > 1)')", "jsonb_path_exists({jsonb}, '$.a.b')", "({int} <> ALL ({int[]}))"),
        *("({timestamp} {cmp} {date})", "({interval} = {interval})", "({uuid} = {uuid})", "({char(4)} = {char(4)})", "({char(4)} = 'ab')"),
        *("({int}, {int}) < ({int}, 2)", "({float8} {cmp} {int})", "starts_with({text}, 'a')", "({text} ~ '^[aA]')", "({int[]} && {int[]})"),
        *("({numeric} = {numeric})", "({text[]} = {text[]})", "({time} {cmp} {time})", "({bytea} = {bytea})", "({bigint} > {int})"),
        *("({text} ILIKE '%A%')", "({text} NOT IN ('a', 'b'))", "({jsonb} = {jsonb})", "({timestamptz} {cmp} {timestamptz})"),
        *("({int[][]} {cmp} {int[][]})", "({int} = ANY ({int[][]}))", "({int[][]} @> {int[]})"),
        *("({text} IS JSON)", "({int[]} {cmp} {int[]})", "({varchar(3)[]} = {varchar(3)[]})"),
        *("(({date}, {date}) OVERLAPS ({date}, {date}))", "(({timestamp}, {interval}) OVERLAPS ({timestamp}, {timestamp}))"),
    ),
    "date": ("({date} + {int} % 40)", "{timestamp}::date", "coalesce({date}, DATE '2024-01-01')", "greatest({date}, {date})"),
    "timestamp": (
        *("{date}::timestamp", "({timestamp} + {interval})", "date_trunc('month', {timestamp})", "({date} + {time})"),
        *("({timestamptz} AT TIME ZONE 'UTC')", "date_bin('6 hours', {timestamp}, TIMESTAMP '2024-01-01')"),
    ),
    "timestamptz": ("({timestamptz} + {interval})", "({timestamp} AT TIME ZONE 'UTC')", "date_trunc('hour', {timestamptz})"),
    "interval": ("({timestamp} - {timestamp})", "({interval} + {interval})", "({interval} * 2)", "make_interval(hours => {int} % 30)"),
    "jsonb": (
        *("jsonb_build_object('k', {int}, 't', {text})", "to_jsonb({text})", "({jsonb} -> 'a')", "({jsonb} -> 0)", "to_jsonb({int[][]})"),
        *("jsonb_build_array({int}, {boolean})", "to_jsonb({int[]})", "jsonb_path_query_array({jsonb}, '$.*')", "({jsonb} #> '{{a,b}}')"),
        *("coalesce({jsonb}, '{{}}')", "jsonb_path_query_first({jsonb}, '$[*] ? (@ == 1)')", "to_jsonb({date})"),
        *("JSON_OBJECT('k': {int}, 't' VALUE {text} ABSENT ON NULL RETURNING jsonb)", "JSON_ARRAY({int}, {jsonb} NULL ON NULL RETURNING jsonb)"),
        *("JSON_ARRAY({text}, {date}, {boolean} RETURNING jsonb)", "JSON_OBJECT(coalesce({text}, ''): {jsonb} RETURNING jsonb)"),
        *("jsonb_strip_nulls({jsonb})", "jsonb_path_query_array({jsonb}, '$.b[*] * 2', '{{}}', true)"),
        *("to_jsonb(CASE WHEN {boolean} THEN ROW({int}, {text}) WHEN {boolean} THEN ROW({int}, {text}) END)", "to_jsonb(coalesce(ROW({date}), ROW({date})))"),
    ),
    "int[]": (
        *("ARRAY[{int}, {int}]", "array_append({int[]}, {int})", "({int[]} || {int[]})", "array_remove({int[]}, 2)"),
        *("({int[]})[1:1]", "array_replace({int[]}, 1, 9)"),
    ),
    "int[][]": (
        *("ARRAY[[{int}, {int}]]", "({int[][]} || {int[][]})", "({int[][]} || ARRAY[{int}, 2])", "({int[][]})[1:1]"),
        *("array_replace({int[][]}, 1, 9)", "ARRAY[ARRAY[{int}, 1], ARRAY[2, {int}]]", "array_reverse({int[][]})"),
    ),
    "text[]": ("ARRAY[{text}::text, {text}::text]", "string_to_array({text}, ' ')", "array_append({text[]}, {text})", "({text[]} || {text})"),
    "numeric(6,2)[]": (),
    "varchar(3)[]": ("{text[]}::varchar(3)[]",),
    "few": ("coalesce({few}, 0)::few",),
    "uuid": ("coalesce({uuid}, '00000000-0000-0000-0000-000000000001'::uuid)",),
    "time": ("({time} + {interval})", "{timestamp}::time", "coalesce({time}, TIME '01:00')"),
    "bytea": ("convert_to({text}, 'UTF8')", "({bytea} || '\\x00'::bytea)"),
    "char(4)": ("coalesce({char(4)}, 'zz'::char(4))",),
}  # fmt: skip


class Subqueries(Protocol):
    """Makes queries inside expressions."""

    def single(self, kind: str, scope: Scope) -> str:
        """A query of one column that has at most one row."""

    def several(self, kind: str, scope: Scope) -> str:
        """A query of one column."""


@dataclass(frozen=True)
class Scope:
    """The columns that an expression may name.

    Attributes:
        columns: these, which a query groups or reads.
        outer: those of the queries around it.
        aggregates: columns below an aggregate; None where there may be none.
    """

    columns: tuple[Named, ...]
    outer: tuple[Named, ...] = ()
    aggregates: tuple[Named, ...] | None = None

    def of(self, kind: str) -> list[str]:
        return [column.text for column in self.columns if column.kind == kind]


@dataclass
class Expressions:
    """Makes expressions.

    Attributes:
        random: by which is chosen.
        subqueries: makes queries inside of them.
        excluded: texts that no form may contain.
    """

    random: Random
    subqueries: Subqueries | None = None
    excluded: tuple[str, ...] = field(default=())

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def expression(self, kind: str, scope: Scope, depth: int) -> str:
        """An expression of a type."""
        columns = scope.of(kind)
        if scope.outer and self.chance(0.15):
            columns += [column.text for column in scope.outer if column.kind == kind]
        if depth <= 0 or self.chance(0.3):
            return self.random.choice(columns) if columns and self.chance(0.85) else self.literal(kind)
        if scope.aggregates is not None and self.chance(0.4) and (made := self.aggregate(kind, scope, depth)):
            return made
        if self.subqueries is not None and self.chance(0.06):
            return f"({self.subqueries.single(kind, scope)})"
        if kind == "boolean" and self.subqueries is not None and self.chance(0.12):
            return self._membership(scope, depth)
        forms = [form for form in FORMS[kind] if not any(text in form for text in self.excluded)]
        if not forms:
            return self.random.choice(columns) if columns else self.literal(kind)
        return self.fill(self.random.choice(forms), scope, depth)

    def literal(self, kind: str) -> str:
        return self.random.choice(LITERALS[kind])

    def fill(self, form: str, scope: Scope, depth: int) -> str:
        """A form with expressions in its places."""
        parts = [*_parts(form)]
        made, first = "", None
        for text, kind in parts:
            made += text
            if kind is None:
                break
            if kind == "cmp":
                part = self.random.choice(["<", "<=", ">", ">=", "="])
            elif kind == "same":
                part = first or ""
            else:
                part = self.expression(ALIASES.get(kind, kind), scope, depth - 1)
                first = first or part
            made += part
        return made

    def _membership(self, scope: Scope, depth: int) -> str:
        assert self.subqueries is not None
        inner = replace(scope, aggregates=None)
        kind = self.random.choice(["int", "text", "int", "date"])
        query = self.subqueries.several(kind, inner)
        if self.chance(0.4):
            return f"{self.random.choice(['', 'NOT '])}EXISTS ({query})"
        test = self.random.choice(["IN", "NOT IN", "= ANY", "< ALL", ">= ANY"])
        return f"({self.expression(kind, scope, depth - 1)} {test} ({query}))"

    def aggregate(self, kind: str, scope: Scope, depth: int) -> str | None:
        """An aggregate of a type, over all that is below; None if there is none."""
        inside = Scope(scope.aggregates or ())  # of outer columns alone, an aggregate would be one of the outer query
        forms = AGGREGATES.get(kind)
        if not forms:
            return None
        form = self.random.choice(forms)
        made = self.fill(form, inside, min(depth, 2))
        if self.chance(0.2) and not form.startswith("coalesce") and form.endswith(")") and not form.startswith("round"):
            made += f" FILTER (WHERE {self.expression('boolean', inside, 1)})"
        return made


AGGREGATES: dict[str, Sequence[str]] = {
    "bigint": ("count(*)", "count({int})", "count(DISTINCT {text})", "sum({int})", "count(DISTINCT {int})", "regr_count({int}, {float8})"),
    "int": ("min({int})", "max({int})", "mode() WITHIN GROUP (ORDER BY {int})", "percentile_disc(0.5) WITHIN GROUP (ORDER BY {int})", "bit_or({int})", "bit_and({int})"),
    "numeric": (
        *("sum({numeric})", "avg({int})", "max({numeric})", "sum(DISTINCT {numeric})", "sum({bigint})", "avg({numeric})"),
        *("round(corr({int}, {int})::numeric, 6)", "round(regr_slope({int}, {int})::numeric, 6)", "round(stddev({int}), 6)"),
        *("round(var_pop({int}), 6)", "round(covar_pop({int}, {int})::numeric, 6)", "round(regr_intercept({int}, {int})::numeric, 6)"),
        "percentile_disc(0.25) WITHIN GROUP (ORDER BY {numeric})",
    ),
    "float8": (
        *("sum({int}::float8 / 4)", "max({float8})", "avg({int}::float8)", "min({float8})"),
        *("percentile_cont(0.5) WITHIN GROUP (ORDER BY {int})", "regr_avgx({int}, {int})", "regr_sxx({int}, {int})"),
    ),
    "text": (
        *("string_agg({text}, ',' ORDER BY {text})", "min({text})", "max({text})", "string_agg(DISTINCT {text}, '|' ORDER BY {same})"),
        *("percentile_disc(0.5) WITHIN GROUP (ORDER BY {text})", "max({char(4)})::text"),
    ),
    "boolean": ("bool_and({boolean})", "bool_or({boolean})", "every({boolean})", "(count(*) > 1)", "(max({int}) > 1)"),
    "date": ("min({date})", "max({date})"),
    "timestamp": ("min({timestamp})", "max({timestamp})"),
    "timestamptz": ("max({timestamptz})",),
    "interval": ("sum({interval})", "max({interval})", "percentile_cont(0.5) WITHIN GROUP (ORDER BY {interval})"),
    "jsonb": ("jsonb_agg({int} ORDER BY {same})", "jsonb_agg({text} ORDER BY {same} DESC)", "jsonb_agg(DISTINCT {int})", "JSON_ARRAYAGG({text} ORDER BY {same} RETURNING jsonb)", "JSON_OBJECTAGG(coalesce({text}, ''): 1 RETURNING jsonb)"),
    "int[]": ("array_agg({int} ORDER BY {same})", "array_agg(DISTINCT {int} ORDER BY {same})", "max({int[]})"),
    "int[][]": ("array_agg(ARRAY[{int}, 1] ORDER BY {same})", "max({int[][]})", "min({int[][]})"),
    "text[]": ("array_agg({text}::text ORDER BY {same} DESC)", "array_agg(DISTINCT {text}::text ORDER BY {same}::text)"),
    "time": ("max({time})",),
    "numeric(6,2)[]": ("max({numeric(6,2)[]})",),
    "uuid": (),
    "char(4)": ("max({char(4)})",),
}  # fmt: skip


def _parts(form: str) -> Iterator[tuple[str, str | None]]:
    """Texts of a form, and the type of the place after each; `{{` and `}}` are braces."""
    text, place = "", 0
    while place < len(form):
        character = form[place]
        if form[place : place + 2] in {"{{", "}}"}:
            text, place = text + character, place + 2
        elif character == "{":
            end = form.index("}", place)
            yield text, form[place + 1 : end]
            text, place = "", end + 1
        else:
            text, place = text + character, place + 1
    yield text, None
