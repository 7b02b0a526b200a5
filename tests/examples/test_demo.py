"""The demo shows rows as psql does."""

from __future__ import annotations

from typing import Any

import pytest
from example_script import import_script

demo = import_script("demo.py")


@pytest.mark.parametrize(
    ("names", "rows", "lines"),
    [  # as psql 16 prints them, without blanks at line ends
        (
            ["user", "amount"],
            [("ann", 12.5), ("ben", None)],
            [" user | amount", "------+--------", " ann  |   12.5", " ben  |", "(2 rows)"],
        ),
        (["n"], [(1,)], [" n", "---", " 1", "(1 row)"]),
        (["n"], [], [" n", "---", "(0 rows)"]),
    ],
)
def test_demo_shows_rows_as_psql(names: list[str], rows: list[tuple[Any, ...]], lines: list[str]) -> None:
    assert demo.table(names, rows) == lines
