"""The places in a lambda where its columns get their names."""

from __future__ import annotations

import re

from derive.position import Position, Script
from derive.sql.block import Statement


def place_of(script: Script, statement: Statement, column: str, number: int = 0) -> Position:
    """Return where a column gets its name, or else where its statement begins.

    Args:
        script: the lambda.
        statement: one of its statements.
        column: the name that SQLite gives the column.
        number: of the column among those of the name, from 0.
    """
    begin, end = statement.begin, statement.offset + len(statement.text)
    name = re.escape(column)
    for pattern in (rf"\bAS\s+[\"`\[']?({name})(?!\w)", rf"(?<![\w$])({name})(?!\w)"):
        written = list(re.compile(pattern, re.IGNORECASE).finditer(script.text, begin, end))
        if written:
            return script.locate(written[min(number, len(written) - 1)].start(1), len(column))
    return script.locate(begin)
