"""Migrations: each runs once; an applied migration may not change.

If an edit were skipped silently, the catalog and the state would differ. So every applied migration is compared with
the text that was applied.
"""

from __future__ import annotations

from derive.errors import Issue, LambdaError
from derive.lambda_sql.block import first_issue, read_block
from derive.lambda_sql.guard import MIGRATIONS, Guard
from derive.lambda_sql.watch import ENVIRONMENT, FAILURES, Watch, hint_of, reason_of
from derive.position import Position, Script

_TABLE = f"CREATE TABLE IF NOT EXISTS {MIGRATIONS} (script_index INTEGER PRIMARY KEY NOT NULL, script TEXT NOT NULL)"


def apply_migrations(guard: Guard, watch: Watch, migrations: tuple[Script, ...], task: str, position: Position) -> None:
    """Run the pending migrations on a database, inside its open transaction.

    Args:
        guard: inactive guard of a shard's state.
        watch: inactive watch; a statement has the time limit of a document.
        migrations: migrations of the catalog.
        task: name of the derivation in errors.
        position: position of the derivation, for errors about removed migrations.

    Raises:
        LambdaError: a migration fails, or an applied migration has been edited, removed or moved.
    """
    db = guard.db
    db.execute(_TABLE)
    applied = [str(row[0]) for row in db.execute(f"SELECT script FROM {MIGRATIONS} ORDER BY script_index").fetchall()]
    _compare(applied, migrations, task, position)
    for index in range(len(applied), len(migrations)):
        with guard, watch:
            _run(guard, watch, migrations[index], f"migration {index} of '{task}'")
        db.execute(f"INSERT INTO {MIGRATIONS} VALUES (?, ?)", (index, migrations[index].text))


def _compare(applied: list[str], migrations: tuple[Script, ...], task: str, position: Position) -> None:
    for index, text in enumerate(applied):
        if index >= len(migrations):
            raise LambdaError(
                f"migration {index} of '{task}' was applied and is no longer in the catalog: {text.strip()[:80]!r}",
                position=position,
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


def _run(guard: Guard, watch: Watch, script: Script, what: str) -> None:
    cursor = guard.db.cursor()
    for statement in read_block(guard, script, what):
        if isinstance(statement, Issue):
            raise first_issue(statement)
        if statement.parameters:
            offset = script.text.find(statement.parameters[0], statement.begin) - 1
            raise LambdaError(
                f"{what} has a parameter ${statement.parameters[0]}, but no document is being processed",
                position=script.locate(offset, len(statement.parameters[0]) + 1),
            )
        watch.begin(cursor, iter(()))
        try:
            for _ in cursor.execute(statement.text):
                pass
        except ENVIRONMENT:
            raise
        except FAILURES as exc:
            position = script.locate(statement.begin)
            raise LambdaError(
                f"{what} fails: {reason_of(exc, guard, watch)}", position=position, hint=hint_of(exc, watch)
            ) from exc


def _first_difference(before: str, after: str) -> int:
    pairs = zip(before, after, strict=False)
    return next((index for index, (left, right) in enumerate(pairs) if left != right), min(len(before), len(after)))
