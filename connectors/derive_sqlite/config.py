"""The configuration of a derivation in SQL: the migrations that build its tables."""

from __future__ import annotations

from dataclasses import dataclass

from derive.position import Script
from derive.protocol.authoring import CODE_OR_FILE, CatalogFiles, LocatedValue
from derive.protocol.specs import DerivationSpec

CONFIG_SCHEMA = {
    "title": "SQLite",
    "description": "Lambdas are SQL, run on a SQLite database of each shard.",
    "type": ["object", "null"],
    "properties": {
        "migrations": {
            "type": "array",
            "description": "SQL that builds the tables, run once each and in order. Add to the end; never edit one.",
            "items": {"type": "string", "description": f"SQL statements. {CODE_OR_FILE}", "title": "Migration"},
        }
    },
    "patternProperties": {"^x-": True},
    "additionalProperties": False,
}
"""The JSON Schema of a catalog's value below `using: {sqlite: …}`."""


@dataclass(frozen=True, slots=True)
class SqliteConfig:
    """The configuration of a derivation in SQL, apart from its lambdas.

    Attributes:
        migrations: SQL blocks that build the tables, in order.
    """

    migrations: tuple[Script, ...] = ()


def load_config(at: LocatedValue, files: CatalogFiles) -> SqliteConfig:
    """Return the configuration below `sqlite`, with the migrations that can be loaded."""
    fields = dict(at.items()) if at.value else {}
    written = fields["migrations"].elements() if "migrations" in fields else ()
    scripts = [files.script(migration, "the migration") for migration in written]
    return SqliteConfig(tuple(script for script in scripts if script))


def migrations_of(spec: DerivationSpec) -> tuple[Script, ...]:
    """Return the migrations of a derivation in SQL."""
    config: SqliteConfig = spec.connector_config
    return config.migrations
