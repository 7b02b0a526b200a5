"""Failures: finds, after a failure, the statement of a block that failed on a document, and the reason.

A record of each statement before its execution would cost time for every document.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import apsw

from connectors.derive_sqlite.program import Program, Step
from derive.errors import LambdaError, Rejection
from derive.lambda_sql.guard import Guard
from derive.lambda_sql.resource_limits import FAILURES, Watch, exceeds_limit, hint_of, reason_of, show_document
from derive.protocol.specs import Document

_I64 = 1 << 63
_SHOWN_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class Failure:
    """A lambda that failed.

    Attributes:
        program: the program that failed.
        document: the document on which it failed.
        published: the document's timestamp, microseconds.
        cause: the exception.
        index: index of the document in its batch.
        step: the step that failed, if it is known.
    """

    program: Program
    document: Document
    published: int
    cause: Exception
    index: int
    step: Step | None = None


def explain(failure: Failure, guard: Guard, watch: Watch) -> LambdaError:
    """Return the error that stops the task; the database's transaction is lost."""
    program, exc, step = failure.program, failure.cause, failure.step
    reason = reason_of(exc, guard, watch)
    if isinstance(exc, OverflowError):
        oversized = _find_oversized(failure)
        if oversized:
            step, reason = oversized
    step = step or _find_failing(failure, guard.db, watch)
    script = program.transform.script
    begin = step.statement.begin if step else program.steps[0].statement.begin
    failed = f"{program.what} failed: {reason}"
    # A limit may be exceeded once only, and a statement that has ended the transaction has undone other documents.
    is_rejected = not exceeds_limit(exc, watch) and guard.db.in_transaction
    return LambdaError(
        f"{failed}; the document was {show_document(failure.document, _SHOWN_CHARACTERS)}",
        position=script.locate(begin) if script else program.transform.position,
        hint=hint_of(exc, watch),
        rejection=Rejection(failure.index, failed) if is_rejected else None,
    )


def _find_oversized(failure: Failure) -> tuple[Step, str] | None:
    for step in failure.program.steps:
        values = step.binding.values(failure.document, failure.published)
        for name, value in zip(step.statement.parameters, values, strict=True):
            if isinstance(value, int) and not -_I64 <= value < _I64:
                return step, f"${name} is {value}, which is beyond SQLite's 64-bit integers"
    return None


def _find_failing(failure: Failure, db: apsw.Connection, watch: Watch) -> Step | None:
    """Return the step that failed; None if it is unknown."""
    steps = failure.program.steps
    if len(steps) == 1:
        return steps[0]
    if isinstance(failure.cause, apsw.InterruptError):
        return _only([step for step in steps if watch.interrupted.startswith(_constant(step))])
    if isinstance(failure.cause, LambdaError):  # the row is not a valid document
        return next((step for step in steps if step.make is not None), None)
    return _find_by_trying(failure, db)


def _constant(step: Step) -> str:
    """Return the text of a statement up to its first parameter."""
    names = "|".join([*map(re.escape, step.statement.parameters), r"\d"])
    first = re.search(rf"[$:@?](?:{names})", step.sql)
    return step.sql[: first.start()] if first else step.sql


def _find_by_trying(failure: Failure, db: apsw.Connection) -> Step | None:
    """Run the steps again, and return the step that fails with the same message; None for no step or several.

    Some errors end the transaction; then no statement may run, because changes would be committed.
    """
    failing = []
    for step in failure.program.steps:
        if not db.in_transaction:
            return None
        if _message(db, step.statement.text, step.binding.values(failure.document, failure.published)) == str(
            failure.cause
        ):
            failing.append(step)
    return _only(failing)


def _only(steps: list[Step]) -> Step | None:
    return steps[0] if len(steps) == 1 else None


def _message(db: apsw.Connection, sql: str, values: tuple[Any, ...]) -> str | None:
    try:
        for _ in db.execute(sql, values):
            pass
    except FAILURES as exc:
        return str(exc)
    return None
