"""Measured lambdas: copies of the statements of lambdas that report which branches documents reach.

A copy that SQLite refuses is not used, and its branches are not measured. An example is a term of ORDER BY that must
equal a column of a UNION.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import apsw

from derive.lambda_sql.branches import REACHED, BranchNumbers, instrument
from derive.lambda_sql.guard import FAILURES, Guard
from derive.lambda_sql.statements import Statement
from derive.protocol.derive import Branch, Reach
from derive.protocol.specs import DerivationSpec, TransformSpec


class MeasuredLambdas:
    """The measured statements of one session.

    Args:
        spec: the derivation.
        reach: receives the number of each branch that a document reaches.

    Attributes:
        branches: branches of the statements that were rewritten.
    """

    def __init__(self, spec: DerivationSpec, reach: Reach) -> None:
        self.branches: list[Branch] = []
        self._numbers = BranchNumbers(spec)
        self._reach = reach

    def register(self, database: apsw.Connection) -> frozenset[str]:
        """Add the function that the copies call to a database, and return its name."""
        database.create_scalar_function(REACHED, self._note, 1, flags=apsw.SQLITE_DIRECTONLY)
        return frozenset({REACHED})

    def _note(self, *arguments: apsw.SQLiteValue) -> int:
        (number,) = arguments
        assert isinstance(number, int)
        self._reach(number)
        return 0

    def rewrite(self, guard: Guard, transform: TransformSpec, statement: Statement) -> Statement:
        """Return the copy of a statement that reports its branches; the statement itself if it has none.

        Args:
            guard: active guard; its database has the derivation's tables and the function of the copies.
            transform: the transform of the lambda.
            statement: one of its statements.
        """
        numbered = self._numbers.within(transform, statement.begin, statement.offset + len(statement.text))
        text = instrument(statement.text, statement.offset, numbered)
        if not numbered:
            return statement
        with suppress(*FAILURES):
            guard.db.execute(f"EXPLAIN {text}", (None,) * len(statement.parameters), can_cache=False).fetchall()
            self.branches += self._numbers.placed(transform, numbered)
            return replace(statement, text=text)
        return statement
