"""Values as columns take them: exact, or refused with the row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sql_databases import DATABASES, commit, source

from connectors.materialize_sql.column import Kind, Naming, key_kind_of, kind_of, literal, quote
from connectors.materialize_sql.values import Unfit, encoder
from derive.errors import EndpointError


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
def test_kinds_of_columns_follow_from_types(types: list[str], text_format: str, kind: Kind | None) -> None:
    assert kind_of(types, text_format) is kind


def test_bounded_integers_are_bigint() -> None:
    assert kind_of(["integer"], minimum=0, maximum=2**63 - 1) is Kind.BIGINT
    assert kind_of(["integer"], minimum=0, maximum=2**63) is Kind.INTEGER
    assert kind_of(["integer"], minimum=0) is Kind.INTEGER


def test_kinds_of_keys_keep_keys_distinct() -> None:
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
def test_values_that_fit_are_encoded(kind: Kind, values: list[Any], encoded: list[Any]) -> None:
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
def test_values_that_do_not_fit_are_refused_with_their_row(kind: Kind, value: Any) -> None:
    with pytest.raises(Unfit) as unfit:
        encoder(kind)([None, value, value])

    assert unfit.value.row == 1
    assert repr(value)[:60] in unfit.value.reason


def test_column_names_are_valid_and_distinct() -> None:
    assert quote('a"b') == '"a""b"'
    assert literal("it's") == "'it''s'"
    naming = Naming(most_bytes=20, taken=frozenset({"ctid"}))
    assert naming.column("balance") == "balance"
    assert naming.column("ctid") == "ctid_a67689179f"
    assert naming.column("") == "_e3b0c44298"
    assert naming.column("ä" * 11) == "ääää_13e4878a48"
    assert naming.column("a\0b") == "ab_59b271ae1b"


# Kinds of values × databases: each is stored as what it is, or refused with the true reason and its row.


LARGE = 10**700
"""An integer of 291 bytes: no key has one."""

NO_HUGEINT = "does not fit 128 bits"
NO_DOUBLE = "is an integer that no double is equal to"
YEAR_0 = "has the year 0000"

MOMENT = "to_char(v at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')"
DUCKDB_MOMENT = "strftime(v at time zone 'UTC', '%Y-%m-%d %H:%M:%S.%f')"

TABLE: list[tuple[list[str], str, Any, dict[str, str]]] = [
    # types, format, value, and by database the text of what is stored, or why it is not
    (["integer"], "", 2**63, dict.fromkeys(DATABASES, str(2**63))),
    (["integer"], "", LARGE, {"sqlite": str(LARGE), "postgres": str(LARGE), "duckdb": f"! {NO_HUGEINT}"}),
    (["integer"], "", -LARGE, {"sqlite": str(-LARGE), "postgres": str(-LARGE), "duckdb": f"! {NO_HUGEINT}"}),
    (["number"], "", LARGE, {"sqlite": str(LARGE), "postgres": str(LARGE), "duckdb": f"! {NO_DOUBLE}"}),
    (["number"], "", 10**19, {"sqlite": str(10**19), "postgres": str(10**19), "duckdb": "1e+19"}),
    (["number", "string"], "number", LARGE, dict.fromkeys(DATABASES, str(LARGE))),
    (["integer", "string"], "integer", "12.0", dict.fromkeys(DATABASES, "12")),
    (["integer", "object"], "", LARGE, dict.fromkeys(DATABASES, str(LARGE))),
    *(
        (["string"], "date-time", text, {"sqlite": text, "postgres": moment, "duckdb": moment})
        for text, moment in [
            ("2024-01-01T00:00:00.123456789Z", "2024-01-01 00:00:00.123457"),
            ("2024-01-01T00:00:00.1234565Z", "2024-01-01 00:00:00.123456"),
            ("2024-01-01T00:00:00.9999999Z", "2024-01-01 00:00:01.000000"),
            ("2024-01-01T00:00:00+16:00", "2023-12-31 08:00:00.000000"),
            ("2024-01-01T00:00:00-23:59", "2024-01-01 23:59:00.000000"),
            ("2016-12-31T23:59:60Z", "2017-01-01 00:00:00.000000"),
            ("2016-12-31T23:59:60.25Z", "2017-01-01 00:00:00.250000"),
            ("2024-01-01t00:00:00z", "2024-01-01 00:00:00.000000"),
        ]
    ),
    (
        ["string"],
        "date-time",
        "0000-01-01T00:00:00Z",
        {"sqlite": "0000-01-01T00:00:00Z", "postgres": f"! {YEAR_0}", "duckdb": f"! {YEAR_0}"},
    ),
    (
        ["string"],
        "date-time",
        "0001-01-01T00:00:00+23:59",
        {
            "sqlite": "0001-01-01T00:00:00+23:59",
            "postgres": "! is beyond the years 1 to 9999 in UTC",
            "duckdb": "! is beyond the years 1 to 9999 in UTC",
        },
    ),
]


@pytest.mark.sampled(24)
@pytest.mark.parametrize("name", sorted(DATABASES))
@pytest.mark.parametrize(("types", "form", "value", "stored"), TABLE, ids=lambda value: str(value)[:40])
def test_a_value_is_stored_or_refused(
    types: list[str], form: str, value: Any, stored: dict[str, str], name: str, tmp_path: Path
) -> None:
    database = DATABASES[name](tmp_path)
    described = source({"id": ["integer"]}, {"v": types})
    described.fields["v"] = replace(described.fields["v"], format=form)
    binding = described.binding()
    database.apply(binding)
    expected = stored[name]

    with database.session(binding) as session:
        if expected.startswith("! "):
            with pytest.raises(EndpointError) as caught:
                commit(session, binding, [{"id": 7, "v": value}])
            assert expected[2:] in caught.value.message
            assert "[7]" in caught.value.message
            return
        commit(session, binding, [{"id": 7, "v": value}])
    is_moment = form == "date-time"
    texts = {"postgres": MOMENT, "duckdb": DUCKDB_MOMENT} if is_moment else {}
    assert database.query(f"SELECT {texts.get(name, 'CAST(v AS TEXT)')} FROM balances") == [(expected,)]


@pytest.mark.parametrize("seconds", ["0.0000005", "1.0000015", "2.1234565", "59.9999995", "60", "60.4999995"])
def test_timestamps_are_rounded_as_postgres_rounds(seconds: str, tmp_path: Path) -> None:
    """A stored moment is the moment that PostgreSQL makes of its text."""
    database = DATABASES["postgres"](tmp_path)
    text = f"2024-01-01T00:00:{seconds.zfill(2) if '.' not in seconds else seconds.zfill(len(seconds) + (seconds[1] == '.'))}Z"
    described = source({"id": ["integer"]}, {"v": ["string"]})
    described.fields["v"] = replace(described.fields["v"], format="date-time")
    binding = described.binding()
    database.apply(binding)
    with database.session(binding) as session:
        commit(session, binding, [{"id": 1, "v": text}])

    assert database.query(f"SELECT v = timestamptz '{text}' FROM balances") == [(True,)]
