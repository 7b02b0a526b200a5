"""Failures: which statement of a block failed on a document, and why, found out only after it has.

Keeping note of it beforehand would cost every document.
"""

from __future__ import annotations

from typing import Any

import apsw

from connectors.derive_sqlite.program import Program, Step
from derive.document.exact import dump_exact
from derive.errors import LambdaError
from derive.protocol.specs import Document

_I64 = 1 << 63
_SHOWN_CHARACTERS = 1000


def explain(
    cursor: apsw.Cursor,
    program: Program,
    document: Document,
    published: int,
    exc: Exception,
    step: Step | None = None,
) -> LambdaError:
    """The error that stops the task.

    Args:
        cursor: of the shard's database, the transaction of which is lost anyway.
        program: what failed.
        document: what it failed on.
        published: the document's clock, microseconds.
        exc: how.
        step: where in the program, if that is known.
    """
    reason = exc.message if isinstance(exc, LambdaError) else str(exc)
    if isinstance(exc, OverflowError):
        found = _find_oversized(program, document, published)
        if found:
            step, reason = found
    step = step or _find_failing(cursor, program, document, published, exc)
    shown = dump_exact(document).decode()
    if len(shown) > _SHOWN_CHARACTERS:
        shown = f"{shown[:_SHOWN_CHARACTERS]}…"
    script = program.transform.script
    begin = step.statement.begin if step else program.steps[0].statement.begin
    position = script.locate(begin) if script else program.transform.position
    return LambdaError(f"{program.what} failed: {reason}; the document was {shown}", position=position)


def _find_oversized(program: Program, document: Document, published: int) -> tuple[Step, str] | None:
    for step in program.steps:
        values = step.binding.values(document, published)
        for name, value in zip(step.statement.parameters, values, strict=True):
            if isinstance(value, int) and not -_I64 <= value < _I64:
                return step, f"${name} is {value}, which is beyond SQLite's 64-bit integers"
    return None


def _find_failing(
    cursor: apsw.Cursor, program: Program, document: Document, published: int, exc: Exception
) -> Step | None:
    """The step that fails in the same way when it is run again; None if there are several."""
    if isinstance(exc, LambdaError):
        return next((each for each in program.steps if each.make is not None), None)
    if len(program.steps) == 1:
        return program.steps[0]
    failing = []
    for step in program.steps:
        if _message(cursor, step.statement.text, step.binding.values(document, published)) == str(exc):
            failing.append(step)
    return failing[0] if len(failing) == 1 else None


def _message(cursor: apsw.Cursor, sql: str, values: tuple[Any, ...]) -> str | None:
    try:
        cursor.execute(sql, values).fetchall()
    except apsw.Error as exc:
        return str(exc)
    return None
