"""Positions in a lambda where its columns are named."""

from __future__ import annotations

import re

from derive.lambda_sql.block import Statement
from derive.position import Position, Script


def place_of(script: Script, statement: Statement, column: str, number: int = 0) -> Position:
    """Return the position where a column is named, or the start of its statement.

    Args:
        script: the lambda.
        statement: one of its statements.
        column: the name that SQLite gives the column.
        number: index of the column among columns of this name, from 0.
    """
    begin, end = statement.begin, statement.offset + len(statement.text)
    name = re.escape(column)
    for pattern in (rf"\bAS\s+[\"`\[']?({name})(?!\w)", rf"(?<![\w$])({name})(?!\w)"):
        written = list(re.compile(pattern, re.IGNORECASE).finditer(script.text, begin, end))
        if written:
            return script.locate(written[min(number, len(written) - 1)].start(1), len(column))
    return script.locate(begin)
