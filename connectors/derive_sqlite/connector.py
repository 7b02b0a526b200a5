"""The connector: checks a derivation's SQL, and opens sessions.

Every catalog needs the configuration schema of every connector, so all other modules are imported only when used.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from connectors.derive_sqlite.program import CONFIG_SCHEMA, SqliteConfig, load_config, migrations_of
from derive.document.pointer import JSON
from derive.errors import Issue, LambdaError
from derive.protocol.authoring import CatalogFiles, Generation, LocatedValue
from derive.protocol.derive import Branch, Log, Reach, SharedCode
from derive.protocol.specs import DerivationSpec

if TYPE_CHECKING:
    import apsw

    from connectors.derive_sqlite.session import SqliteSession


class SqliteConnector:
    """Derivations in SQL."""

    def config_schema(self) -> JSON:
        """Return the JSON Schema of the value below `sqlite`."""
        return CONFIG_SCHEMA

    def configure(self, at: LocatedValue, files: CatalogFiles) -> SqliteConfig:
        """Return the configuration with its migrations."""
        return load_config(at, files)

    def config_type(self) -> type[SqliteConfig]:
        """Return the class of configurations."""
        return SqliteConfig

    def check(self, specs: Sequence[DerivationSpec]) -> list[Issue]:
        """Apply the migrations of each derivation to an empty database, and prepare every lambda against it.

        If a migration fails, the lambdas are not checked: they cannot be prepared without their tables.
        """
        from connectors.derive_sqlite.check import check_sql

        return [issue for spec in specs for issue in check_sql(spec)]

    def keeps_state(self, spec: DerivationSpec) -> bool:
        """Return whether there are tables."""
        return bool(migrations_of(spec))

    def shared_code(self, spec: DerivationSpec) -> SharedCode | None:
        """Return None: lambdas share tables, and no code."""
        return None

    def refusal(self, spec: DerivationSpec) -> Issue | None:
        """Return None: SQL needs no permissions."""
        return None

    def applied_migrations(self, database: apsw.Connection) -> tuple[str, ...]:
        """Return the texts of the migrations that were applied to a shard's state, in order."""
        from connectors.derive_sqlite.session import read_applied

        return read_applied(database)

    def find_edited_migration(self, spec: DerivationSpec, applied: Sequence[str]) -> LambdaError | None:
        """Return the error of an applied migration that was edited, moved or removed; None without one."""
        from connectors.derive_sqlite.session import find_edited

        return find_edited(applied, migrations_of(spec), spec.name, spec.collection.position)

    def open(self, spec: DerivationSpec, database: apsw.Connection, log: Log) -> SqliteSession:
        """Open a session over a shard's state.

        Raises:
            LambdaError: a migration or a lambda is wrong.
        """
        from connectors.derive_sqlite.session import SqliteSession

        return SqliteSession(spec, database, log)

    def branches(self, spec: DerivationSpec) -> list[Branch]:
        """Return the arms of CASE and outcomes of WHERE in lambdas that SQLite accepts in a measured copy."""
        from connectors.derive_sqlite.check import empty_state
        from connectors.derive_sqlite.measured import MeasuredLambdas
        from connectors.derive_sqlite.session import SqliteSession

        measured = MeasuredLambdas(spec, lambda _: None)
        with closing(empty_state()) as database:
            SqliteSession(spec, database, lambda *_: None, measured).close()
        return measured.branches

    def open_measured(self, spec: DerivationSpec, database: apsw.Connection, log: Log, reach: Reach) -> SqliteSession:
        """Open a session that reports branches."""
        from connectors.derive_sqlite.measured import MeasuredLambdas
        from connectors.derive_sqlite.session import SqliteSession

        return SqliteSession(spec, database, log, MeasuredLambdas(spec, reach))

    def fields_read(self, spec: DerivationSpec) -> list[list[str]] | None:
        """Return the fields that lambdas read; None if random values or messages of SQL depend on whole documents."""
        from connectors.derive_sqlite.console import mentions_console
        from connectors.derive_sqlite.program import fields_of
        from derive.lambda_sql.determinism import calls_chance

        scripts = [*migrations_of(spec), *(transform.script for transform in spec.transforms)]
        texts = [script.text for script in scripts if script]
        if calls_chance(texts) or mentions_console(texts):
            return None
        return [fields_of(spec, transform) for transform in spec.transforms]

    def generate(self, spec: DerivationSpec, root: Path, missing: Collection[str]) -> Generation:
        """Return stubs of lambdas and migrations."""
        from derive.lambda_sql.stub import sql_stubs

        return Generation(tuple(sql_stubs(spec, migrations_of(spec), missing)))

    def cache(self, spec: DerivationSpec) -> list[str]:
        """Return an empty list: SQL has no libraries."""
        return []
