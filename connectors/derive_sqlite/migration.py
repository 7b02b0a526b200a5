"""Migrations: each is run once; what has been run may not change.

A silently skipped edit would leave the catalog saying one thing and the state being another, so every applied
migration is compared with the text that was applied.
"""

from __future__ import annotations

import apsw

from connectors.derive_sqlite.block import first_issue, read_block
from derive.errors import Issue, LambdaError
from derive.position import Position, Script

_TABLE = "CREATE TABLE IF NOT EXISTS flow_migrations (script_index INTEGER PRIMARY KEY NOT NULL, script TEXT NOT NULL)"


def apply_migrations(db: apsw.Connection, migrations: tuple[Script, ...], task: str, place: Position) -> None:
    """Run the migrations that have not been run on this database, inside its open transaction.

    Args:
        db: a shard's state.
        migrations: of the catalog.
        task: names the derivation in errors.
        place: where the derivation is written, for errors about what is written no longer.

    Raises:
        LambdaError: one fails, or one that was run has been edited, removed or moved.
    """
    db.execute(_TABLE)
    applied = [str(row[0]) for row in db.execute("SELECT script FROM flow_migrations ORDER BY script_index").fetchall()]
    _compare(applied, migrations, task, place)
    for index in range(len(applied), len(migrations)):
        _run(db, migrations[index], f"migration {index} of '{task}'")
        db.execute("INSERT INTO flow_migrations VALUES (?, ?)", (index, migrations[index].text))


def _compare(applied: list[str], migrations: tuple[Script, ...], task: str, place: Position) -> None:
    for index, text in enumerate(applied):
        if index >= len(migrations):
            raise LambdaError(
                f"migration {index} of '{task}' was applied and is no longer in the catalog: {text.strip()[:80]!r}",
                position=place,
                hint="put it back; to undo it, append a migration",
            )
        if migrations[index].text != text:
            differs = _first_difference(text, migrations[index].text)
            was = f"it went on {text[differs:][:60]!r} here" if differs < len(text) else "it ended here"
            raise LambdaError(
                f"migration {index} of '{task}' was applied and has been edited since: {was}",
                position=migrations[index].locate(differs),
                hint="restore it, and append a migration with the change",
            )


def _run(db: apsw.Connection, script: Script, what: str) -> None:
    for statement in read_block(db, script, what):
        if isinstance(statement, Issue):
            raise first_issue(statement)
        if statement.parameters:
            place = script.text.find(statement.parameters[0], statement.begin) - 1
            raise LambdaError(
                f"{what} has a parameter ${statement.parameters[0]}, but no document is being processed",
                position=script.locate(place, len(statement.parameters[0]) + 1),
            )
        try:
            db.execute(statement.text).fetchall()
        except apsw.Error as exc:
            raise LambdaError(f"{what} fails: {exc}", position=script.locate(statement.begin)) from exc


def _first_difference(before: str, after: str) -> int:
    pairs = zip(before, after, strict=False)
    return next((place for place, (left, right) in enumerate(pairs) if left != right), min(len(before), len(after)))
