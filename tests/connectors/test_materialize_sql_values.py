"""Values as columns take them: exact, or refused with the row."""

from __future__ import annotations

from typing import Any

import pytest

from connectors.materialize_sql.column import Kind, key_kind_of, kind_of
from connectors.materialize_sql.names import Naming, literal, quote
from connectors.materialize_sql.values import Unfit, encoder


@pytest.mark.parametrize(
    ("types", "text_format", "kind"),
    [
        (["null"], "", None),
        ([], "", None),
        (["boolean", "null"], "", Kind.BOOLEAN),
        (["integer"], "", Kind.INTEGER),
        (["fractional", "integer"], "", Kind.NUMBER),
        (["integer", "number"], "", Kind.NUMBER),
        (["number", "null"], "", Kind.NUMBER),
        (["string"], "", Kind.TEXT),
        (["string"], "email", Kind.TEXT),
        (["string"], "date", Kind.DATE),
        (["null", "string"], "date-time", Kind.TIMESTAMP),
        (["integer", "string"], "date-time", Kind.JSON),  # an integer is no moment
        (["string"], "integer", Kind.INTEGER),
        (["integer", "string"], "integer", Kind.INTEGER),
        (["integer", "string"], "number", Kind.DECIMAL),
        (["string"], "number", Kind.DECIMAL),
        (["integer", "string"], "", Kind.JSON),
        (["object"], "", Kind.JSON),
        (["array", "null"], "", Kind.JSON),
    ],
)
def test_kinds(types: list[str], text_format: str, kind: Kind | None) -> None:
    assert kind_of(types, text_format) is kind


def test_integers_that_are_bounded_fit_64_bits() -> None:
    assert kind_of(["integer"], minimum=0, maximum=2**63 - 1) is Kind.BIGINT
    assert kind_of(["integer"], minimum=0, maximum=2**63) is Kind.INTEGER
    assert kind_of(["integer"], minimum=0) is Kind.INTEGER


def test_kinds_of_keys_keep_keys_apart() -> None:
    assert key_kind_of(["string"], must_exist=True) is Kind.TEXT
    assert key_kind_of(["string"], must_exist=False) is Kind.JSON
    assert key_kind_of(["null", "string"], must_exist=True) is Kind.JSON
    assert key_kind_of(["integer", "string"], must_exist=True) is Kind.JSON
    assert key_kind_of(["integer"], must_exist=True) is Kind.INTEGER


@pytest.mark.parametrize(
    ("kind", "values", "encoded"),
    [
        (Kind.BOOLEAN, [True, None], [True, None]),
        (Kind.BIGINT, [2**63 - 1, None], [2**63 - 1, None]),
        (Kind.INTEGER, [2**200, -1], [2**200, -1]),
        (Kind.INTEGER, ["-007", 5, None, 3.0], [-7, 5, None, 3]),
        (Kind.NUMBER, [1, 0.1, None], [1, 0.1, None]),
        (Kind.DECIMAL, ["1.50", 2, 1e300, None, "NaN"], ["1.50", "2", "1e+300", None, "NaN"]),
        (Kind.TEXT, ["a\0b", None, ""], ["a\0b", None, ""]),
        (Kind.DATE, ["2026-02-28"], ["2026-02-28"]),
        (Kind.TIMESTAMP, ["2026-02-28T00:00:00.123456000+01:00"], ["2026-02-28T00:00:00.123456000+01:00"]),
        (Kind.INTEGER, ["1.0", "-12.000", "9" * 4300], [1, -12, int("9" * 4300)]),
        (
            Kind.TIMESTAMP,
            ["2024-01-01T00:00:00.123456789Z", None, "2016-12-31T23:59:60.5Z", "2026-02-28t00:00:00-23:59"],
            ["2024-01-01T00:00:00.123457Z", None, "2017-01-01T00:00:00.500000Z", "2026-02-28T23:59:00.000000Z"],
        ),
        (Kind.JSON, [True, None, "a", 2**70, b'{"a":1}'], ["true", None, '"a"', str(2**70), '{"a":1}']),
    ],
)
def test_what_fits(kind: Kind, values: list[Any], encoded: list[Any]) -> None:
    assert list(encoder(kind)(values)) == encoded


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Kind.BOOLEAN, 1),
        (Kind.BIGINT, 2**63),
        (Kind.BIGINT, -(2**63) - 1),
        (Kind.BIGINT, True),
        (Kind.INTEGER, "1.5"),
        (Kind.INTEGER, "1."),
        (Kind.INTEGER, "१"),
        (Kind.INTEGER, 1.5),
        (Kind.INTEGER, b"{}"),
        (Kind.NUMBER, True),
        (Kind.NUMBER, "1"),
        (Kind.DECIMAL, "1e99999"),
        (Kind.DECIMAL, "one"),
        (Kind.DECIMAL, False),
        (Kind.TEXT, 1),
        (Kind.TEXT, b"[]"),
        (Kind.DATE, "2026-2-28"),
        (Kind.DATE, "0000-01-01"),
        (Kind.TIMESTAMP, "0000-01-01T00:00:00Z"),
        (Kind.TIMESTAMP, "0001-01-01T00:00:00+23:59"),
        (Kind.TIMESTAMP, "9999-12-31T23:59:59.9999999Z"),
        (Kind.TIMESTAMP, "2026-02-28T00:00:61Z"),
        (Kind.TIMESTAMP, "2026-02-28T00:00:00+24:00"),
        (Kind.TIMESTAMP, "2026-02-30T00:00:00.1234567Z"),
        (Kind.TIMESTAMP, "2026-02-28T00:00:00"),
        (Kind.TIMESTAMP, "2026-02-28"),
    ],
)
def test_what_does_not_fit(kind: Kind, value: Any) -> None:
    with pytest.raises(Unfit) as unfit:
        encoder(kind)([None, value, value])

    assert unfit.value.row == 1
    assert repr(value)[:60] in unfit.value.reason


def test_names() -> None:
    assert quote('a"b') == '"a""b"'
    assert literal("it's") == "'it''s'"
    naming = Naming(most_bytes=20, taken=frozenset({"ctid"}))
    assert naming.column("balance") == "balance"
    assert naming.column("ctid") == "ctid_a67689179f"
    assert naming.column("") == "_e3b0c44298"
    assert naming.column("ä" * 11) == "ääää_13e4878a48"
    assert naming.column("a\0b") == "ab_59b271ae1b"
