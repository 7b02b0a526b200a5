"""Migrations: each is run once; what has been run may not change."""

from __future__ import annotations

import apsw

from connectors.derive_sqlite.block import prepare_one, split
from derive.errors import LambdaError
from derive.position import Script

_TABLE = "CREATE TABLE IF NOT EXISTS flow_migrations (script_index INTEGER PRIMARY KEY NOT NULL, script TEXT NOT NULL)"


def apply_migrations(db: apsw.Connection, migrations: tuple[Script, ...], task: str) -> None:
    """Run the migrations that have not been run on this database, inside its open transaction.

    Raises:
        LambdaError: one fails, or one that was run has been edited, removed or moved.
    """
    db.execute(_TABLE)
    applied = [str(row[0]) for row in db.execute("SELECT script FROM flow_migrations ORDER BY script_index").fetchall()]
    for index, text in enumerate(applied):
        if index >= len(migrations):
            raise LambdaError(
                f"migration {index} of '{task}' was applied and is no longer in the catalog: {text.strip()[:80]!r}",
                hint="put it back; to undo it, append a migration",
            )
        if migrations[index].text != text:
            place = _first_difference(text, migrations[index].text)
            raise LambdaError(
                f"migration {index} of '{task}' was applied and was edited since: it had {text[place:][:60]!r} here",
                position=migrations[index].locate(place),
                hint="restore it, and append a migration with the change",
            )
    for index in range(len(applied), len(migrations)):
        script = migrations[index]
        what = f"migration {index} of '{task}'"
        for text, offset in split(script.text):
            prepare_one(db, script, text, offset, what)
            try:
                db.execute(text)
            except apsw.SQLError as exc:
                raise LambdaError(f"{what} fails: {exc}", position=script.locate(offset)) from exc
        db.execute("INSERT INTO flow_migrations VALUES (?, ?)", (index, script.text))


def _first_difference(before: str, after: str) -> int:
    pairs = zip(before, after, strict=False)
    return next((place for place, (left, right) in enumerate(pairs) if left != right), min(len(before), len(after)))
