"""Random relations, and random histories of the collections that they are about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from changing import Changing
from relations_sample import aggregate, call

from derive.algebra.expression import Call, Case, Column, Expression, Literal, OuterColumn, Subquery, SubqueryKind
from derive.algebra.relation import (
    Aggregate,
    Bound,
    Constant,
    Distinct,
    Exclusion,
    Filter,
    Frame,
    FrameUnit,
    Get,
    Join,
    Order,
    OuterJoin,
    Project,
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
from derive.algebra.types import Datum, Row, Type
from derive.functions.registry import READ_TIME, builder_of
from derive.functions.types.datetime import Interval, interval_datum

INTEGERS: Sequence[Datum] = (-1, 0, 1, 2, 3)
TEXTS: Sequence[Datum] = ("a", "b", "A", "")
DOUBLES: Sequence[Datum] = (0.1, 0.2, 0.3, 1e16, -1e16, 1e-300, 3.5, 0.0, 1e308, float("inf"), float("-inf"), "NaN")
TIMES: Sequence[Datum] = (0, 3, 6, 8, 11, 15, 20, 1_000_000, 86_400_000_000)
VALUES = {Type.BIGINT: INTEGERS, Type.TEXT: TEXTS, Type.DOUBLE: DOUBLES, Type.TIMESTAMPTZ: TIMES}

COLLECTIONS = {
    1: (Type.BIGINT, Type.BIGINT, Type.TEXT, Type.DOUBLE),
    2: (Type.BIGINT, Type.BIGINT, Type.TEXT),
    3: (Type.BIGINT, Type.DOUBLE, Type.TIMESTAMPTZ),
}
"""Types of the columns of collections."""


@dataclass(slots=True)
class RandomRelations:
    """Makes relations over `COLLECTIONS`.

    Attributes:
        random: by which is chosen.
        can_fail: whether expressions may have no value.
        is_temporal: whether filters may compare the time of the read with a column.
    """

    random: Random
    can_fail: bool = False
    is_temporal: bool = False

    def relation(self, depth: int) -> Relation:
        """A relation of a few operators."""
        if depth <= 0:
            return self._leaf()
        makers: list[tuple[int, Callable[[int], Relation]]] = [
            (12 if self.is_temporal else 2, self._filter),
            (2, self._project),
            (4, self._join),
            (3, self._outer_join),
            (1, self._union),
            (1, self._distinct),
            (2, self._set_operation),
            (5, self._reduce),
            (1, self._window),
            (1, self._top),
            (1, self._unnest),
            (2, self._subquery),
        ]
        kinds = [make for _, make in makers]
        return self.random.choices(kinds, [weight for weight, _ in makers])[0](depth - 1)

    def _leaf(self) -> Relation:
        if self.random.random() < 0.05:
            rows = tuple((self._value(Type.BIGINT), self._value(Type.TEXT)) for _ in range(self.random.randrange(3)))
            return Constant(rows, (Type.BIGINT, Type.TEXT))
        number = 3 if self.is_temporal and self.random.random() < 0.6 else self.random.choice(list(COLLECTIONS))
        return Get(number, COLLECTIONS[number])

    def _value(self, kind: Type) -> Datum:
        return None if self.random.random() < 0.15 else self.random.choice(VALUES[kind])

    def _column(self, types: Sequence[Type], kind: Type | None = None) -> Column | None:
        columns = [Column(index, one) for index, one in enumerate(types) if kind in {None, one}]
        return self.random.choice(columns) if columns else None

    def _expression(self, types: Sequence[Type]) -> Expression:
        choice = self.random.random()
        number = self._column(types, Type.BIGINT)
        if number is not None and choice < 0.15:
            return Case(((call(">", number, Literal(1, Type.BIGINT)), Literal(1, Type.BIGINT)),), number, Type.BIGINT)
        if number is not None and choice < 0.3 and self.can_fail:
            return call("/", Literal(6, Type.BIGINT), number)
        words = self._column(types, Type.TEXT)
        if words is not None and choice < 0.4:
            return call("||", words, Literal("!", Type.TEXT))
        column = self._column(types)
        return column or Literal(self._value(Type.BIGINT), Type.BIGINT)

    def _predicate(self, types: Sequence[Type]) -> Expression:
        number = self._column(types, Type.BIGINT)
        choices: list[Expression] = []
        if number is not None:
            symbol = self.random.choice(["=", "<>", "<", ">="])
            choices.append(call(symbol, number, Literal(self.random.choice(INTEGERS), Type.BIGINT)))
            choices.append(call("is not null", number))
            other = self._column(types, Type.BIGINT)
            if other is not None:
                choices.append(call(self.random.choice(["<", "=", "is not distinct from"]), number, other))
            if self.can_fail:
                choices.append(call(">", call("/", Literal(6, Type.BIGINT), number), Literal(1, Type.BIGINT)))
        words = self._column(types, Type.TEXT)
        if words is not None:
            choices.append(call(">=", words, Literal(self.random.choice(TEXTS), Type.TEXT)))
            choices.append(call("is null", words))
        double = self._column(types, Type.DOUBLE)
        if double is not None:
            choices.append(call(">", double, Literal(0.15, Type.DOUBLE)))
        predicate = self.random.choice(choices or [Literal(1, Type.BOOLEAN)])
        if self.random.random() < 0.2:
            predicate = call("not", predicate)
        if self.random.random() < 0.2:
            predicate = call(self.random.choice(["or", "and"]), predicate, self.random.choice(choices or [predicate]))
        return predicate

    def _equation(self, left: Sequence[Type], right: Sequence[Type]) -> Expression | None:
        pairs = [
            (Column(one, kind), Column(len(left) + other, kind))
            for one, kind in enumerate(left)
            for other, that in enumerate(right)
            if kind is that
        ]
        if not pairs:
            return None
        one, other = self.random.choice(pairs)
        if one.type is Type.TEXT and self.random.random() < 0.3:
            return call("=", call("lower", one), call("lower", other))
        return call("=", one, other)

    def _filter(self, depth: int) -> Relation:
        source = self.relation(depth)
        predicate = self._predicate(source.types)
        column = self._column(source.types, Type.TIMESTAMPTZ) if self.is_temporal else None
        if column is not None:
            temporal = self._temporal(column)
            predicate = call("and", temporal, predicate) if self.random.random() < 0.4 else temporal
        return Filter(source, predicate)

    def _temporal(self, column: Column) -> Expression:
        now = Call(READ_TIME, (), Type.TIMESTAMPTZ)
        interval = Literal(interval_datum(Interval(0, 0, self.random.randrange(-4, 9))), Type.INTERVAL)
        symbol = self.random.choice(["<", "<=", ">", ">=", "="])
        until = call(self.random.choice(["<", "<="]), now, call("+", column, interval))
        return self.random.choice(
            [
                call(symbol, column, now),
                call(symbol, call("-", now, interval), column),
                call(symbol, call("-", now, column), interval),
                call("and", call(self.random.choice([">", ">="]), now, column), until),
            ]
        )

    def _project(self, depth: int) -> Relation:
        source = self.relation(depth)
        return Project(source, tuple(self._expression(source.types) for _ in range(self.random.randrange(1, 4))))

    def _join(self, depth: int) -> Relation:
        inputs = [self.relation(depth - self.random.randrange(2)) for _ in range(self.random.choice([2, 2, 3]))]
        types: list[Type] = list(inputs[0].types)
        predicates = []
        for relation in inputs[1:]:
            equation = self._equation(types, relation.types)
            types += relation.types
            if equation is not None and self.random.random() < 0.9:
                predicates.append(equation)
            if equation is None or self.random.random() < 0.3:
                predicates.append(self._predicate(types))
        return Join(tuple(inputs), tuple(predicates))

    def _outer_join(self, depth: int) -> Relation:
        left, right = self.relation(depth), self.relation(depth - 1)
        types = left.types + right.types
        predicate = self._equation(left.types, right.types)
        if predicate is None or self.random.random() < 0.1:
            predicate = self._predicate(types)
        if self.random.random() < 0.4:
            predicate = call("and", predicate, self._predicate(self.random.choice([left.types, types])))
        return OuterJoin(self.random.choice(list(Side)), left, right, predicate)

    def _alike(self, depth: int) -> tuple[Relation, Relation]:
        left, right = self.relation(depth), self.relation(depth - 1)
        kinds = [kind for kind in left.types if kind in right.types][:2]
        return self._picked(left, kinds), self._picked(right, kinds)

    def _picked(self, relation: Relation, kinds: Sequence[Type]) -> Relation:
        columns = [self._column(relation.types, kind) for kind in kinds]
        picked: list[Expression] = [column for column in columns if column is not None]
        return Project(relation, tuple(picked) or (Literal(1, Type.BIGINT),))

    def _union(self, depth: int) -> Relation:
        return UnionAll(self._alike(depth))

    def _distinct(self, depth: int) -> Relation:
        return Distinct(self._project(depth))

    def _set_operation(self, depth: int) -> Relation:
        return SetOperation(self.random.choice(list(SetOperator)), self.random.random() < 0.5, *self._alike(depth))

    def _aggregate(self, types: Sequence[Type]) -> Aggregate:
        column = self._column(types) or Literal(1, Type.BIGINT)
        symbols = ["count", "min", "max"] + ["sum", "avg"] * (column.type in {Type.BIGINT, Type.DOUBLE})
        symbol = self.random.choice(symbols)
        made = aggregate(symbol, column, is_distinct=self.random.random() < 0.2)
        if column.type is Type.TEXT and self.random.random() < 0.3:
            order = (Order(column, is_descending=self.random.random() < 0.5),) * (self.random.random() < 0.5)
            made = aggregate("string_agg", column, Literal(",", Type.TEXT))
            made = Aggregate(made.function, made.arguments, made.type, made.is_distinct, None, order)
        if self.random.random() < 0.2:
            condition = self._predicate(types)
            made = Aggregate(made.function, made.arguments, made.type, made.is_distinct, condition, made.order)
        return aggregate("count") if self.random.random() < 0.15 else made

    def _reduce(self, depth: int) -> Relation:
        source = self.relation(depth)
        keys = tuple(self._expression(source.types) for _ in range(self.random.choice([0, 1, 1, 2])))
        aggregates = tuple(self._aggregate(source.types) for _ in range(self.random.randrange(4)))
        if not keys and not aggregates:
            aggregates = (aggregate("count"),)
        return Reduce(source, keys, aggregates)

    def _order(self, types: Sequence[Type]) -> tuple[Order, ...]:
        columns = [self._column(types) for _ in range(self.random.randrange(1, 3))]
        return tuple(
            Order(column, self.random.random() < 0.5, self.random.random() < 0.5)
            for column in columns
            if column is not None
        )

    def _window(self, depth: int) -> Relation:
        source = self.relation(depth)
        types = source.types
        partition = tuple(filter(None, [self._column(types)])) if self.random.random() < 0.7 else ()
        order = self._order(types)
        column = self._column(types) or Literal(1, Type.BIGINT)
        plain = [
            WindowFunction("rank", (), Type.BIGINT, partition, order),
            WindowFunction("row_number", (), Type.BIGINT, partition, order),
            WindowFunction("lag", (column,), column.type, partition, order),
            WindowFunction("last_value", (column,), column.type, partition, order),
            WindowFunction("first_value", (column,), column.type, partition, order),
            WindowFunction("count_any", (column,), Type.BIGINT, partition, order),
            WindowFunction("max", (column,), column.type, partition, ()),
            WindowFunction("count_any", (column,), Type.BIGINT, partition, order, self._frame(order)),
        ]
        return Window(source, tuple(self.random.sample(plain, self.random.randrange(1, 3))))

    def _frame(self, order: tuple[Order, ...]) -> Frame:
        unit = self.random.choice([FrameUnit.ROWS, FrameUnit.GROUPS]) if order else FrameUnit.ROWS
        exclusions: list[Exclusion | None] = [None, Exclusion.CURRENT_ROW]
        if unit is FrameUnit.GROUPS:
            exclusions += [Exclusion.GROUP, Exclusion.TIES]
        return Frame(unit, Bound(-1), Bound(0), self.random.choice(exclusions))

    def _top(self, depth: int) -> Relation:
        source = self.relation(depth)
        keys = tuple(filter(None, [self._column(source.types)])) if self.random.random() < 0.5 else ()
        return TopK(source, keys, self._order(source.types), self.random.randrange(1, 4), self.random.randrange(2))

    def _unnest(self, depth: int) -> Relation:
        source = self.relation(depth)
        column = self._column(source.types)
        if column is None or column.type.array is None:
            return source
        others = [self._column(source.types, column.type) or column for _ in range(self.random.randrange(2))]
        array = Call(builder_of(column.type), (column, *others), column.type.array)
        return Unnest(source, array)

    def _subquery(self, depth: int) -> Relation:
        source, inner = self.relation(depth), self.relation(depth - 1)
        outer = self._column(source.types)
        own = None if outer is None else self._column(inner.types, outer.type)
        if outer is None or own is None:
            return Filter(source, Subquery(SubqueryKind.EXISTS, inner, (), Type.BOOLEAN))
        correlated = Filter(inner, call("=", own, OuterColumn(1, outer.index, outer.type)))
        choice = self.random.randrange(5)
        if choice == 0:
            predicate: Expression = Subquery(SubqueryKind.EXISTS, correlated, (), Type.BOOLEAN)
        elif choice == 1:
            predicate = Subquery(SubqueryKind.IN, Project(inner, (own,)), (outer,), Type.BOOLEAN)
        elif choice == 2:
            other = self._column(inner.types)
            read = inner if other is None else Project(correlated, (other,))
            maximum = Reduce(read, (), (aggregate("max", Column(0, read.types[0])),))
            value = Subquery(SubqueryKind.SCALAR, maximum, (), read.types[0])
            every = tuple(Column(index, kind) for index, kind in enumerate(source.types))
            return Project(source, (*every, value))
        elif choice == 3:
            count = Reduce(inner, (), (aggregate("count"),))
            value = Subquery(SubqueryKind.SCALAR, count, (), Type.BIGINT)
            predicate = call(">", value, Literal(2, Type.BIGINT))
        else:
            more = Filter(correlated, self._predicate(inner.types))
            predicate = Subquery(SubqueryKind.EXISTS, more, (), Type.BOOLEAN)
        if self.random.random() < 0.3:
            predicate = call("not", predicate)
        return Filter(source, predicate)


def random_changes(
    random: Random, live: list[Row], types: Sequence[Type], doubles: Sequence[Datum] = DOUBLES
) -> list[tuple[Row, int]]:
    """Rows that come and go, of those that are there."""
    values = VALUES | {Type.DOUBLE: doubles}
    changes = []
    for _ in range(random.randrange(1, 5)):
        if live and random.random() < 0.45:
            changes.append((live.pop(random.randrange(len(live))), -1))
            continue
        row: Row = tuple(None if random.random() < 0.15 else random.choice(values[kind]) for kind in types)
        if live and random.random() < 0.2:
            row = random.choice(live)
        live.append(row)
        changes.append((row, 1))
    return changes


def collections() -> dict[int, Changing]:
    """Collections of which nothing is there yet."""
    return {number: Changing(types) for number, types in COLLECTIONS.items()}
