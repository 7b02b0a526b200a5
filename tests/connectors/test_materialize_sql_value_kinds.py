"""Kinds of values × databases: each is stored as what it is, or refused with the true reason and its row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sql_databases import DATABASES, commit, source

from derive.errors import EndpointError

LARGE = 10**700
"""An integer of 291 bytes: no key has one."""

NO_HUGEINT = "does not fit 128 bits"
NO_DOUBLE = "is an integer that no double is equal to"
YEAR_0 = "is of the year 0000"

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
def test_moments_are_rounded_as_postgres_rounds(seconds: str, tmp_path: Path) -> None:
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
