"""Random queries have the same rows, columns and errors as in a real PostgreSQL."""

import os
import random

from hypothesis import given, settings
from hypothesis import strategies as st
from statement_oracle import Description, Refusal, description, postgres_description, postgres_rows, rows

EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "6")) * 10


class Writer:
    """Writes one query; tables have aliases that are never used twice."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._tables = 0

    def pick(self, *choices: str) -> str:
        return self._random.choice(choices)

    def chance(self) -> bool:
        return self._random.random() < 0.5

    def table(self, depth: int, outer: list[str]) -> tuple[str, str]:
        """A relation with integer columns a and b and the text c, and its alias."""
        self._tables += 1
        alias = f"r{self._tables}"
        if depth and self.chance():
            return f"({self.rows(depth - 1, outer)}) {alias}", alias
        table = self.pick(
            "t", "(select a, a * 7 as b, f as c from u)", "(values (1, 10, 'x'), (2, null, 'p'), (2, 5, null))"
        )
        return f"{table} {alias}(a, b, c)", alias

    def number(self, aliases: list[str], depth: int) -> str:
        column = f"{self.pick(*aliases)}.{self.pick('a', 'b')}" if aliases else self.pick("1", "2", "10")
        if not depth:
            return column
        other = self.pick(column, "2", f"coalesce({self.number(aliases, 0)}, 3)", f"length({self.text(aliases)})")
        if self._random.random() < 0.1:
            return f"(array_sort(array[{column}, {other}], {self.pick('true', 'false')}))[{self.pick('1', '2')}]"
        if self.chance():
            return other
        if self.chance():
            return f"({column} {self.pick('+', '-', '*')} {other})"
        if self.chance():
            return f"case when {self.predicate(aliases, depth - 1)} then {column} else {other} end"
        function = self.pick("max", "min", "sum", "count")
        table, alias = self.table(0, aliases)
        where = self.predicate([*aliases, alias], depth - 1)
        return f"(select {function}({alias}.{self.pick('a', 'b')}) from {table} where {where})"

    def text(self, aliases: list[str]) -> str:
        return f"{self.pick(*aliases)}.c" if aliases else self.pick("'x'", "'p'")

    def predicate(self, aliases: list[str], depth: int) -> str:
        number = self.number(aliases, depth)
        simple = [
            f"{number} {self.pick('=', '<', '>=', '<>')} {self.number(aliases, 0)}",
            f"{self.text(aliases)} {self.pick('=', '<', 'is distinct from')} {self.text(aliases)}",
            f"{number} is {self.pick('', 'not ')}null",
            f"{number} {self.pick('', 'not ')}in (1, 2, {self.pick('null', '20')})",
            f"{number} between 1 and {self.number(aliases, 0)}",
            f"({number}, {self.text(aliases)}) {self.pick('=', '<', '>=', '<>')} ({self.number(aliases, 0)}, 'p')",
            f"({number}, 2) = (select max(u.a), {self.pick('2', 'min(u.a)')} from u)",
            self.pick("true", "false", "null::boolean"),
            f"to_jsonb({number}) {self.pick('@? ', '@@ ')} {self.pick('$ ? (@ > 2)', '$ == 2', 'strict $[1]')!r}",
            f"{self.text(aliases)} is {self.pick('', 'not ')}json",
        ]
        if not depth:
            return self.pick(*simple)
        table, alias = self.table(0, aliases)
        inner = self.predicate([*aliases, alias], depth - 1)
        nested = [
            f"{self.pick('', 'not ')}exists (select 1 from {table} where {inner})",
            f"{number} {self.pick('', 'not ')}in (select {alias}.a from {table} where {inner})",
            f"{number} {self.pick('<', '>=')} {self.pick('any', 'all')} (select {alias}.b from {table} where {inner})",
            f"({self.predicate(aliases, 0)} {self.pick('and', 'or')} not {self.predicate(aliases, 0)})",
        ]
        return self.pick(*simple, *nested)

    def tables(self, depth: int, outer: list[str]) -> tuple[str, list[str]]:
        """What stands in FROM, and the aliases in it."""
        first, alias = self.table(depth, outer)
        shape = self.pick("one", "one", "two", "join", "lateral", "left lateral")
        if shape == "one":
            return first, [alias]
        if shape in {"lateral", "left lateral"}:
            self._tables += 1
            other = f"r{self._tables}"
            query = self.rows(max(depth - 1, 0), [alias])
            if shape == "lateral":
                return f"{first}, lateral ({query}) {other}", [alias, other]
            return f"{first} left join lateral ({query}) {other} on {self.predicate([alias, other], 0)}", [alias, other]
        second, other = self.table(0, outer)
        if shape == "two":
            return f"{first}, {second}", [alias, other]
        kind = self.pick("join", "left join", "right join", "full join")
        # PostgreSQL has full joins by equality only.
        condition = f"{alias}.a = {other}.a"
        if kind != "full join" and self.chance():
            condition = self.predicate([alias, other], 0)
        return f"{first} {kind} {second} on {condition}", [alias, other]

    def frame(self) -> str:
        """A frame of a window with one integer in its order; the rows of the frame do not depend on ties."""
        unit, end = self.pick("range", "groups"), self.pick("current row", "1 following", "unbounded following")
        begin = self.pick("unbounded preceding", "2 preceding", "current row")
        exclude = self.pick("", "exclude current row", "exclude group", "exclude ties", "exclude no others")
        return f"{unit} between {begin} and {end} {exclude}"

    def rows(self, depth: int, outer: list[str]) -> str:  # noqa: PLR0911 (one for each shape)
        """A query with the integer columns a and b and the text c, which may refer to the aliases around it."""
        tables, aliases = self.tables(depth, outer)
        visible = aliases + outer
        where = f" where {self.predicate(visible, depth)}" if self.chance() else ""
        shape = self.pick("plain", "plain", "group", "distinct", "top", "window", "union")
        a, b, c = self.number(visible, depth), self.number(visible, 0), self.text(visible)
        if shape == "group":
            key, text = f"{aliases[0]}.a", f"min({c})"
            having = f" having count(*) > {self.pick('0', '1')}" if self.chance() else ""
            total = self.pick(
                "sum(1)",
                "count(*)",
                f"max({b})",
                f"count(distinct {b})",
                f"min({b}) filter (where {key} > 1)",
                f"regr_count({a}, {b})",
                f"regr_sxx(0, {aliases[-1]}.a)",
                f"percentile_disc(least(abs({key}), 7) / 7.0) within group (order by {b})",
            )
            if self.chance():
                return (
                    f"select {key} as a, {total}::bigint as b, {text} as c from {tables}{where} group by {key}{having}"
                )
            return f"select max({a}) as a, {total}::bigint as b, {text} as c from {tables}{where}{having}"
        if shape == "window":
            function = self.pick("row_number()", f"sum({b}::int)", "count(*)", "rank()")
            order = ", ".join(f"{alias}.{column}" for alias in aliases for column in ("a", "b", "c"))
            over = f"partition by {aliases[0]}.a order by {order}"
            if self.chance():
                function = self.pick(f"first_value({b})", f"last_value({b})", f"nth_value({b}, 2)")
                over += f" groups between {self.pick('1 preceding', 'current row')} and 1 following"
            if self.chance():
                function = self.pick(f"sum({b}::int)", "count(*)", f"max({b})")
                over = f"partition by {aliases[0]}.c order by {aliases[0]}.a {self.frame()}"
            return f"select {a} as a, {function} over ({over}) as b, {c} as c from {tables}{where}"
        query = f"select {'distinct ' if shape == 'distinct' else ''}{a} as a, {b} as b, {c} as c from {tables}{where}"
        if shape == "union":
            operator = self.pick("union", "union all", "except", "intersect", "except all")
            return f"{query} {operator} {self.rows(max(depth - 1, 0), outer) if depth else 'select a, b, c from t'}"
        if shape == "top":
            if self.chance():
                order, count = self.pick("1", "2 desc", "3, 1"), self.pick("1", "2", "3")
                return f"{query} order by {order} fetch first {count} rows with ties"
            return f"{query} order by 1, 2, 3 limit {self.pick('1', '2', '3')}"
        return query


@given(st.integers(0, 1 << 40))
@settings(max_examples=EXAMPLES, deadline=None)
def test_random_queries_equal_postgresql(seed: int) -> None:
    text = Writer(seed).rows(2, [])
    expected = postgres_description(text)

    ours = description(text)
    if isinstance(expected, Refusal):
        assert isinstance(ours, Refusal), text
        assert ours.sqlstate == expected.sqlstate
        return
    assert isinstance(ours, Description), (text, ours)
    assert ours == expected
    answer, expected_answer = rows(text), postgres_rows(text)
    if isinstance(expected_answer, str):
        assert answer == expected_answer, text
    else:
        assert sorted(answer, key=repr) == sorted(expected_answer, key=repr), text
