"""Values that nobody expects end with an error of SQL, not of Python."""

from __future__ import annotations

import pytest

from derive.algebra.expression import Call, Literal
from derive.algebra.types import Datum, Type
from derive.errors import SqlError
from derive.functions.registry import evaluate, resolve_function, resolve_operator
from derive.functions.types.array import array_of
from derive.functions.types.type_info import datum_of_text

MANY = "9" * 5000
T, N, J = Type.TEXT, Type.INTEGER, Type.JSONB


@pytest.mark.parametrize(
    ("kind", "text", "sqlstate"),
    [
        (Type.BIGINT, MANY, "22003"),
        (Type.NUMERIC, f"1e{MANY}", "22003"),
        (Type.DOUBLE, f"1e{MANY}", "22003"),
        (Type.JSONB, MANY, "22P02"),
        (Type.JSONB, "[" * 100_000, "22P02"),
        (Type.INTERVAL, f"{MANY} years", "22008"),
        (Type.DATE, f"{MANY}-01-01", "22007"),
    ],
)
def test_text_functions_survive_hostile_arguments(kind: Type, text: str, sqlstate: str) -> None:
    with pytest.raises(SqlError) as raised:
        datum_of_text(kind, text)
    assert raised.value.sqlstate == sqlstate


@pytest.mark.parametrize(
    ("function", "arguments", "sqlstate"),
    [
        ("to_date", [("9999999999999999999999", T), ("J", T)], "22008"),
        ("to_date", [(MANY, T), ("YYYY", T)], "22008"),
        ("to_timestamp", [("99999999999999999999", T), ("YYYY", T)], "22008"),
        ("format", [("%2000000000s", T), ("x", T)], "54000"),
        ("format", [(f"%{MANY}s", T), ("x", T)], "54000"),
        ("repeat", [("ab", T), (2_000_000_000, N)], "54000"),
        ("lpad", [("ab", T), (2_000_000_000, N)], "54000"),
        ("jsonb_set", [("[1]", J), (array_of(T, [MANY]), Type.TEXT_ARRAY), ("1", J)], "22P02"),
        ("regexp_replace", [("a", T), ("(" * 5000, T), ("b", T)], "2201B"),
    ],
)
def test_functions_survive_hostile_arguments(function: str, arguments: list[tuple[Datum, Type]], sqlstate: str) -> None:
    resolution = resolve_function(function, [kind for _, kind in arguments])
    call = Call(resolution.function, tuple(Literal(*argument) for argument in arguments), resolution.result_type)
    with pytest.raises(SqlError) as raised:
        evaluate(call)
    assert raised.value.sqlstate == sqlstate


def test_json_path_beyond_an_array_returns_null() -> None:
    resolution = resolve_operator("#>", (J, Type.TEXT_ARRAY))
    path = Literal(array_of(T, [MANY]), Type.TEXT_ARRAY)

    assert evaluate(Call(resolution.function, (Literal("[1]", J), path), J)) is None
