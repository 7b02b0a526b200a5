"""Checking a derivation's SQL: apply the migrations to an empty database, and prepare lambdas against it."""

from __future__ import annotations

from contextlib import closing

import apsw

from connectors.derive_sqlite.column import check_columns
from connectors.derive_sqlite.config import migrations_of
from connectors.derive_sqlite.migration import apply_migrations
from connectors.derive_sqlite.other_keys import check_other_keys
from connectors.derive_sqlite.program import Program, compile_program
from connectors.derive_sqlite.table import check_tables
from derive.errors import Issue, LambdaError
from derive.lambda_sql.chance import Chance
from derive.lambda_sql.guard import Guard
from derive.lambda_sql.watch import Watch
from derive.protocol.derive import STATE_TABLES
from derive.protocol.specs import DerivationSpec


def check_sql(spec: DerivationSpec) -> list[Issue]:
    """Return all issues of the migrations and lambdas of a derivation.

    If a migration fails, the lambdas are not checked: they cannot be prepared without their tables.
    """
    with closing(_empty_state()) as database:
        guard = Guard(database, has_clock=True)
        Chance().register(database)
        watch = Watch(database, spec.limits.sqlite_seconds, megabytes=spec.limits.sqlite_megabytes)
        try:
            apply_migrations(guard, watch, migrations_of(spec), spec.name, spec.collection.position)
        except LambdaError as error:
            return [Issue("E521", error.message, error.position or spec.collection.position, error.hint)]
        with guard:
            programs = [compile_program(guard, spec, transform) for transform in spec.transforms]
        compiled = [program for program in programs if isinstance(program, Program)]
        notes = check_other_keys(spec, compiled, database)
    issues = [
        issue
        for program in programs
        for issue in (program if isinstance(program, list) else check_columns(spec, program))
    ]
    return issues + check_tables(compiled) + notes


def _empty_state() -> apsw.Connection:
    """Return an in-memory database like that of a new shard: in a transaction, with the runtime's own tables."""
    database = apsw.Connection(":memory:")
    database.execute("BEGIN")
    for table in STATE_TABLES:
        database.execute(f"CREATE TABLE {table} (reserved)")
    return database
