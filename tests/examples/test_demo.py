"""The demo shows rows as psql does, and ends lines between words."""

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


def test_demo_folds_commands_and_queries_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    demo.run("true", "--where", "probability > 0.9", "--limit", "3", ".demo/late.jsonl")
    demo._show_query("flow", 'SELECT max(balance) AS most\nFROM "acmeBank/transfer-outcomes" WHERE "a b" > 0;')
    assert capsys.readouterr().out.splitlines() == [
        "",
        "$ true --where 'probability > 0.9' \\",
        "  --limit 3 .demo/late.jsonl",
        "",
        "flow=> SELECT max(balance) AS most",
        'FROM "acmeBank/transfer-outcomes" WHERE',
        '  "a b" > 0;',
    ]
