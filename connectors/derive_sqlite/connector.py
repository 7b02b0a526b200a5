"""The connector: checks a derivation's SQL, and opens sessions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path

import apsw

from connectors.derive_sqlite.column import check_columns
from connectors.derive_sqlite.config import SCHEMA, SqliteConfig, load_config, migrations_of
from connectors.derive_sqlite.migration import apply_migrations
from connectors.derive_sqlite.program import Program, compile_program
from connectors.derive_sqlite.session import SqliteSession
from connectors.derive_sqlite.stub import sql_stubs
from connectors.derive_sqlite.table import check_tables
from derive.errors import Issue, LambdaError
from derive.protocol.authoring import CatalogFiles, Generation, LocatedValue
from derive.protocol.derive import STATE_TABLES, Log, SharedCode
from derive.protocol.specs import JSON, DerivationSpec
from derive.sql.guard import Guard
from derive.sql.watch import Watch


class SqliteConnector:
    """Derivations in SQL."""

    def config_schema(self) -> JSON:
        """What a catalog may say below `sqlite`."""
        return SCHEMA

    def configure(self, at: LocatedValue, files: CatalogFiles) -> SqliteConfig:
        """The migrations."""
        return load_config(at, files)

    def check(self, specs: Sequence[DerivationSpec]) -> list[Issue]:
        """Apply the migrations of each derivation to an empty database, and prepare every lambda against it.

        Where the migrations fail nothing is said about the lambdas, which could not be prepared without their tables.
        """
        return [issue for spec in specs for issue in _check(spec)]

    def keeps_state(self, spec: DerivationSpec) -> bool:
        """Whether there are tables."""
        return bool(migrations_of(spec))

    def shared_code(self, spec: DerivationSpec) -> SharedCode | None:
        """None: lambdas share tables, and no code."""
        return None

    def refusal(self, spec: DerivationSpec) -> Issue | None:
        """None: SQL asks for nothing."""
        return None

    def open(self, spec: DerivationSpec, database: apsw.Connection, log: Log) -> SqliteSession:
        """A session over a shard's state; SQL has nothing to say to the log.

        Raises:
            LambdaError: a migration or a lambda is wrong.
        """
        return SqliteSession(spec, database)

    def generate(self, spec: DerivationSpec, root: Path, missing: Collection[str]) -> Generation:
        """Stubs of lambdas and migrations."""
        return Generation(tuple(sql_stubs(spec, missing)))

    def cache(self, spec: DerivationSpec) -> list[str]:
        """SQL has no libraries."""
        return []


def _check(spec: DerivationSpec) -> list[Issue]:
    with closing(_empty_state()) as database:
        guard, watch = Guard(database), Watch(database, spec.limits.sqlite_seconds)
        try:
            apply_migrations(guard, watch, migrations_of(spec), spec.name, spec.collection.position)
        except LambdaError as error:
            return [Issue("E521", error.message, error.position or spec.collection.position, error.hint)]
        with guard:
            programs = [compile_program(guard, spec, transform) for transform in spec.transforms]
    issues = [
        issue
        for program in programs
        for issue in (program if isinstance(program, list) else check_columns(spec, program))
    ]
    return issues + check_tables([program for program in programs if isinstance(program, Program)])


def _empty_state() -> apsw.Connection:
    """A database in memory that looks like that of a new shard: in a transaction, with the runtime's own tables."""
    database = apsw.Connection(":memory:")
    database.execute("BEGIN")
    for table in STATE_TABLES:
        database.execute(f"CREATE TABLE {table} (reserved)")
    return database
