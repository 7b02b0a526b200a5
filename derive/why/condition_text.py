"""Conditions on traced rows as texts of SQL, for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from derive.algebra.expression import Call, Case, Column, Expression, Literal, OuterColumn, Subquery
from derive.algebra.relation import Constant
from derive.algebra.rewrite import columns_read
from derive.algebra.types import Datum, Type
from derive.functions.registry import function_named
from derive.functions.types.type_info import text_of
from derive.why.lineage import Leaf, bound_to

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
            return f"({', '.join(_expression_text(one, names) for one in operands)}) IN ({len(rows):,} rows)"
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
