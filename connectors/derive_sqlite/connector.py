"""The connector: checks a derivation's SQL, and opens sessions."""

from __future__ import annotations

import apsw

from connectors.derive_sqlite.migration import apply_migrations
from connectors.derive_sqlite.session import Block, SqliteSession
from derive.errors import Issue, LambdaError
from derive.position import Position
from derive.protocol.specs import DerivationSpec


class SqliteConnector:
    """Derivations in SQL."""

    def check(self, spec: DerivationSpec) -> list[Issue]:
        """Apply the migrations to an empty database, and prepare every lambda against it."""
        database = apsw.Connection(":memory:")
        try:
            apply_migrations(database, spec.migrations, spec.name)
        except LambdaError as error:
            return [_issue("E521", error, spec.collection.position)]
        issues = []
        for transform in spec.transforms:
            if transform.script is None:
                message = f"transform '{transform.name}' of '{spec.name}' needs a lambda"
                issues.append(Issue("E526", message, transform.position))
                continue
            try:
                Block(database, spec, transform)
            except LambdaError as error:
                issues.append(_issue("E522", error, transform.position))
        database.close()
        return issues

    def open(self, spec: DerivationSpec, database: apsw.Connection) -> SqliteSession:
        """A session over a shard's state."""
        return SqliteSession(spec, database)


def _issue(code: str, error: LambdaError, fallback: Position) -> Issue:
    return Issue(code, error.message, error.position or fallback, error.hint)
