"""Templates of `to_char`, `to_date`, `to_timestamp` and `to_number`, as people write them."""

from __future__ import annotations

import pytest
from postgres_oracle import call_sql, literal, literal_sql, of_ours, of_postgres

from derive.algebra.expression import Call
from derive.algebra.types import Type
from derive.functions.registry import resolve_function

NUMBERS = ["0", "1", "-1", "0.5", "-0.25", "12", "-485", "1485", "148.5", "-1234567.891", "3148.5", "99.995"]
NUMBER_TEMPLATES = [
    "9999", "0000", "999.99", "FM999.99", "FM990.00", "9,999.99", "9G999D99", "S9999", "9999S", "MI9999", "SG999", "FM9999999.999", "999TH", "FM0999", "0.0", "99.0", '"No. "9999', "$9999.00", "FM$9,999,999.00",
]  # fmt: skip


def same(symbol: str, texts: list[tuple[str, Type]]) -> None:
    resolution = resolve_function(symbol, [kind for _, kind in texts])
    arguments = tuple(literal(text, kind) for text, kind in texts)
    ours = of_ours(Call(resolution.function, arguments, resolution.result_type))
    theirs = of_postgres(call_sql(symbol, [literal_sql(text, kind) for text, kind in texts]))
    assert (ours.type, ours.datum, ours.sqlstate) == (theirs.type, theirs.datum, theirs.sqlstate)


@pytest.mark.parametrize("template", NUMBER_TEMPLATES)
def test_numbers_are_written(template: str) -> None:
    for number in NUMBERS:
        same("to_char", [(number, Type.NUMERIC), (template, Type.TEXT)])
    same("to_char", [("-12", Type.BIGINT), (template, Type.TEXT)])


@pytest.mark.parametrize(
    ("text", "template"),
    [("12,454.8-", "99G999D9S"), ("-12.5", "99.9"), ("  7", "99"), ("1,234", "9,999"), ("$12.50", "$99.99")],
)
def test_numbers_are_read(text: str, template: str) -> None:
    same("to_number", [(text, Type.TEXT), (template, Type.TEXT)])


@pytest.mark.parametrize(
    ("text", "template"),
    [
        ("05 Dec 2000", "DD Mon YYYY"),
        ("5 January 2020", "DD Month YYYY"),
        ("2020-02-29 13:14:15.678", "YYYY-MM-DD HH24:MI:SS.MS"),
        ("20200229T131415", 'YYYYMMDD"T"HH24MISS'),
        ("02/03/20 04:05 PM", "MM/DD/YY HH12:MI AM"),
        ("2020-366", "YYYY-DDD"),
        ("2020 13", "YYYY MM"),
        ("44-03-15 BC", "YYYY-MM-DD BC"),
        ("2020-01-01 13 PM", "YYYY-MM-DD HH12 PM"),
        ("2020-01-01 25", "YYYY-MM-DD HH24"),
        ("x", "YYYY"),
        ("05 Foo 2000", "DD Mon YYYY"),
        ("2020-01-01 00:00:00.123456", "YYYY-MM-DD HH24:MI:SS.US"),
    ],
)
def test_moments_are_read(text: str, template: str) -> None:
    same("to_timestamp", [(text, Type.TEXT), (template, Type.TEXT)])
    same("to_date", [(text, Type.TEXT), (template, Type.TEXT)])
