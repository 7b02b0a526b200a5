"""A session: compiled lambdas over one shard's state, which migrations prepare.

If an edit of an applied migration were ignored, the catalog and the state would differ. So every migration is compared
with the text that was applied.

Consecutive documents of one transform are passed to SQLite by a single `executemany` over an iterator. SQLite takes the
next document only after the last row of the previous document, so a row always belongs to the last document that was
taken. The length hint of the iterator identifies this document, without work for documents that return no row.

After a failure, the failed statement of a block is found by another run of the block, because a record of each
statement before its execution would cost time for every document.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from operator import length_hint, ne
from typing import TYPE_CHECKING, Any

import apsw

from connectors.derive_sqlite.console import Console, mentions_console
from connectors.derive_sqlite.program import Program, Step, compile_program, migrations_of
from connectors.derive_sqlite.row import FEW, PART, Gathered, Row, RowLayout
from derive.document.pointer import JSON
from derive.errors import Issue, LambdaError, Rejection, document_fact
from derive.lambda_sql.determinism import Chance, calls_chance
from derive.lambda_sql.guard import (
    ENVIRONMENT,
    FAILURES,
    MIGRATIONS,
    Guard,
    Watch,
    exceeds_limit,
    hint_of,
    reason_of,
    show_document,
)
from derive.lambda_sql.parameter import find_projection, is_converted
from derive.lambda_sql.statements import first_issue, read_block
from derive.position import Position, Script
from derive.protocol.derive import Log, PublishedColumns, ReadBatch
from derive.protocol.specs import DerivationSpec, Document

if TYPE_CHECKING:
    from connectors.derive_sqlite.measured import MeasuredLambdas

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
        failed,
        position=script.locate(begin) if script else program.transform.position,
        hint=hint_of(exc, watch),
        rejection=Rejection(failure.index, failed) if is_rejected else None,
        facts=[document_fact(show_document(failure.document, _SHOWN_CHARACTERS))],
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


_OTHER_VALUES = re.compile(r"""\b(union|intersect|except)\b|["'`\[]\$""", re.IGNORECASE)
"""Parts of a statement after which a column with the text of a parameter may have other values than the parameter."""

_MARK = "flow_mark"
"""Name of the savepoint before documents that may fail."""

_TABLE = f"CREATE TABLE IF NOT EXISTS {MIGRATIONS} (script_index INTEGER PRIMARY KEY NOT NULL, script TEXT NOT NULL)"


def apply_migrations(guard: Guard, watch: Watch, migrations: tuple[Script, ...], task: str, position: Position) -> None:
    """Run the pending migrations on a database, inside its open transaction.

    Args:
        guard: inactive guard of a shard's state.
        watch: inactive watch; the time limit of a statement is the time limit of a document.
        migrations: migrations of the catalog.
        task: name of the derivation in errors.
        position: position of the derivation, for errors about removed migrations.

    Raises:
        LambdaError: a migration fails, or an applied migration has been edited, removed or moved.
    """
    db = guard.db
    db.execute(_TABLE)
    applied = read_applied(db)
    error = find_edited(applied, migrations, task, position)
    if error is not None:
        raise error
    for index in range(len(applied), len(migrations)):
        run_migration(guard, watch, migrations[index], f"migration {index} of '{task}'")
        db.execute(f"INSERT INTO {MIGRATIONS} VALUES (?, ?)", (index, migrations[index].text))


def read_applied(db: apsw.Connection) -> tuple[str, ...]:
    """Return the texts of the migrations that were applied to a database, in order."""
    if db.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (MIGRATIONS,)).get is None:
        return ()
    return tuple(str(row[0]) for row in db.execute(f"SELECT script FROM {MIGRATIONS} ORDER BY script_index"))


def find_edited(
    applied: Sequence[str], migrations: tuple[Script, ...], task: str, position: Position
) -> LambdaError | None:
    """Return the error of the first applied migration that differs from the catalog's; None without a difference.

    Args:
        applied: texts of the applied migrations.
        migrations: migrations of the catalog.
        task: name of the derivation in errors.
        position: position of the derivation, for errors about removed migrations.
    """
    for index, text in enumerate(applied):
        if index >= len(migrations):
            return LambdaError(
                f"migration {index} of '{task}' was applied and is no longer in the catalog: {text.strip()[:80]!r}",
                position=position,
                hint="put the migration back; to undo its effect, append another migration",
            )
        if migrations[index].text != text:
            differs = _first_difference(text, migrations[index].text)
            was = (
                f"the applied text continues here with {text[differs:][:60]!r}"
                if differs < len(text)
                else "the applied text ends here"
            )
            return LambdaError(
                f"migration {index} of '{task}' was applied and has been edited since: {was}",
                position=migrations[index].locate(differs),
                hint="restore the applied text, and append a migration with the change",
            )
    return None


def run_migration(guard: Guard, watch: Watch, script: Script, what: str) -> None:
    """Run the statements of a migration, inside the open transaction of a database.

    Args:
        guard: inactive guard of a shard's state.
        watch: inactive watch.
        script: the migration.
        what: its name in errors.

    Raises:
        LambdaError: a statement fails; the effects of earlier statements remain.
    """
    with guard, watch:
        _run(guard, watch, script, what)


def _run(guard: Guard, watch: Watch, script: Script, what: str) -> None:
    cursor = guard.db.cursor()
    for statement in read_block(guard, script, what):
        if isinstance(statement, Issue):
            raise first_issue(statement)
        if statement.parameters:
            offset = script.text.find(statement.parameters[0], statement.begin) - 1
            raise LambdaError(
                f"{what} has a parameter ${statement.parameters[0]}, but a migration runs without a document",
                position=script.locate(offset, len(statement.parameters[0]) + 1),
                hint="write the value itself",
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


class SqliteSession:
    """Lambdas of a derivation, open over a shard's database.

    Args:
        spec: the derivation.
        database: the shard's state, inside an open transaction.
        log: receives messages of `console_log`.
        measured: rewrites statements to report their branches; None to run them as they are written.

    Raises:
        LambdaError: a migration or a lambda is wrong.
    """

    def __init__(
        self, spec: DerivationSpec, database: apsw.Connection, log: Log, measured: MeasuredLambdas | None = None
    ) -> None:
        migrations = migrations_of(spec)
        scripts = [*migrations, *(transform.script for transform in spec.transforms)]
        texts = [script.text for script in scripts if script]
        self._chance = Chance(spec.limits.sqlite_megabytes) if calls_chance(texts) else None
        console = Console(log, [transform.name for transform in spec.transforms]) if mentions_console(texts) else None
        self._followers = [one for one in (self._chance, console) if one is not None]
        for follower in self._followers:
            follower.register(database)
        calls = measured.register(database) if measured else frozenset()
        self._guard = Guard(database, has_clock=self._chance is not None, own_calls=calls)
        self._watch = Watch(database, spec.limits.sqlite_seconds, megabytes=spec.limits.sqlite_megabytes)
        apply_migrations(self._guard, self._watch, migrations, spec.name, spec.collection.position)
        self._programs: list[Program] = []
        self._sources = [spec.sources[item.source].projections for item in spec.inputs]
        rewrite = partial(measured.rewrite, self._guard) if measured else None
        with ExitStack() as guarded:
            guarded.enter_context(self._guard)
            guarded.enter_context(self._watch)
            for transform in spec.transforms:
                program = compile_program(self._guard, spec, transform, rewrite)
                if isinstance(program, list):
                    raise first_issue(program[0])
                self._programs.append(program)
            self._layout = _layout_of(self._programs)
            self._forgets_rows = any(program.asks_row_ids for program in self._programs)
            can_alternate = all(program.together and program.steps for program in self._programs)
            asks_others = bool(self._followers) or self._forgets_rows
            self._may_alternate = len(self._programs) > 1 and can_alternate and not asks_others
            self._cursor = database.cursor()
            self._guarded = guarded.pop_all()

    @property
    def flushes(self) -> bool:
        """Return False: only documents cause publications."""
        return False

    def invoke(self, batch: ReadBatch) -> Iterator[tuple[int, Document]]:
        """Run the lambdas over a batch: by runs of one transform, or document by document if runs are short."""
        if self._alternates(batch):
            yield from self._run_alternating(batch)
            return
        for run in self._runs(batch.transforms):
            yield from self._run_together(run, batch) if run.program.together else self._run_steps(run, batch)

    def invoke_columns(self, batch: ReadBatch) -> Iterator[PublishedColumns] | None:
        """Run the lambdas over a batch as columns; return None if returned rows have several layouts."""
        return None if self._layout is None else self._run_by_column(batch)

    def _runs(self, transforms: Sequence[int]) -> Iterator[_Run]:
        """Yield the runs of consecutive documents of one program, in order."""
        begin, count = 0, len(transforms)
        taken = [0] * len(self._programs)
        while begin < count:
            which = transforms[begin]
            end = begin + 1 if len(self._programs) > 1 else count
            while end < count and transforms[end] == which:
                end += 1
            yield _Run(self._programs[which], begin, end, taken[which])
            taken[which] += end - begin
            begin = end

    def _alternates(self, batch: ReadBatch) -> bool:
        """Return whether most documents follow a document of another transform, and can run one by one."""
        transforms = batch.transforms
        if not self._may_alternate or len(transforms) < 2:
            return False
        changes: int = sum(map(ne, transforms, itertools.islice(transforms, 1, None)))
        return 2 * changes > len(transforms)

    def _run_alternating(self, batch: ReadBatch) -> Iterator[tuple[int, Document]]:
        for rows, causes in self._alternating(batch):
            for row, cause in zip(rows, causes, strict=True):
                program = self._programs[batch.transforms[cause]]
                assert program.make is not None
                try:
                    document = program.make(row)
                except LambdaError as exc:
                    raise self._explained(program, batch, cause, exc) from exc
                yield cause, document

    def _alternating(self, batch: ReadBatch) -> Iterator[tuple[list[Row], list[int]]]:
        """Yield groups of rows, each row with the index of the document that caused it."""
        transforms = batch.transforms
        rows: list[Row] = []
        causes: list[int] = []
        index = 0
        blocks = [(program.sql, self._feed_all(program, batch)) for program in self._programs]
        left, execute = iter(range(len(transforms))), self._cursor.execute
        self._watch.begin(self._cursor, left)
        try:
            for index in left:
                sql, feed = blocks[transforms[index]]
                for row in execute(sql, next(feed)):
                    rows.append(row)
                    causes.append(index)
                    if len(rows) == FEW:
                        yield rows, causes
                        rows, causes = [], []
        except ENVIRONMENT:
            raise
        except FAILURES as exc:
            yield rows, causes  # an earlier row that is not a valid document is reported first
            raise self._explained(self._programs[transforms[index]], batch, index, exc) from exc
        yield rows, causes

    def _run_by_column(self, batch: ReadBatch) -> Iterator[PublishedColumns]:
        assert self._layout is not None
        gathered = Gathered(len(self._layout.names))
        if self._alternates(batch):
            yield from self._run_alternating_by_column(gathered, batch)
            return
        for run in self._runs(batch.transforms):
            last, (feed, left) = run.end - 1, self._feed(run, batch)
            try:
                rows = zip(self._rows(run.program, feed, left), map(length_hint, itertools.repeat(left)), strict=False)
                while gathered.is_filled(rows, last):
                    yield self._made(gathered, batch)
            except ENVIRONMENT:
                raise
            except FAILURES as exc:
                if gathered.causes:
                    self._made(gathered, batch)  # an earlier row that is not a valid document is reported first
                raise self._explained(run.program, batch, last - length_hint(left), exc) from exc
        if gathered.causes:
            yield self._made(gathered, batch)

    def _run_alternating_by_column(self, gathered: Gathered, batch: ReadBatch) -> Iterator[PublishedColumns]:
        try:
            for rows, causes in self._alternating(batch):
                gathered.add(rows, causes)
                if len(gathered.causes) >= PART:
                    yield self._made(gathered, batch)
        except LambdaError:
            if gathered.causes:
                self._made(gathered, batch)
            raise
        if gathered.causes:
            yield self._made(gathered, batch)

    def _made(self, gathered: Gathered, batch: ReadBatch) -> PublishedColumns:
        """Return and clear the collected rows, as columns."""
        assert self._layout is not None
        causes, columns = gathered.take()
        try:
            return PublishedColumns(causes, self._layout.columns(columns))
        except LambdaError:
            for cause, row in zip(causes, zip(*columns, strict=True), strict=True):
                program = self._programs[batch.transforms[cause]]
                assert program.make is not None
                try:
                    program.make(row)
                except LambdaError as exc:
                    raise self._explained(program, batch, cause, exc) from exc
            raise

    def _run_together(self, run: _Run, batch: ReadBatch) -> Iterator[tuple[int, Document]]:
        """Run the whole block for each document of a run."""
        program, last = run.program, run.end - 1
        make = program.make
        feed, left = self._feed(run, batch)
        try:
            rows = self._rows(program, feed, left)
            if make is None:
                for _ in rows:
                    pass
                return
            for row in rows:
                yield last - length_hint(left), make(row)
        except ENVIRONMENT:
            raise
        except (*FAILURES, LambdaError) as exc:
            raise self._explained(program, batch, last - length_hint(left), exc) from exc

    def _rows(self, program: Program, feed: Iterator[tuple[Any, ...]], left: Iterator[object]) -> Iterator[Row]:
        """Return the rows that the whole block returns for the documents of a feed."""
        if not program.steps:
            return iter(())
        self._watch.begin(self._cursor, left)
        rows: Iterator[Row] = self._cursor.executemany(program.sql, feed)
        return rows

    def _explained(self, program: Program, batch: ReadBatch, index: int, exc: Exception) -> LambdaError:
        """Return the error of a lambda that failed on the document at `index`."""
        failure = Failure(program, batch.documents[index], batch.published[index], exc, index)
        return explain(failure, self._guard, self._watch)

    def _feed(self, run: _Run, batch: ReadBatch) -> tuple[Iterator[tuple[Any, ...]], Iterator[object]]:
        """Return the parameter values of each document, and an iterator that shows how many documents remain."""
        feed, left = self._feed_values(run, batch)
        return (self._feed_without_row_ids(feed) if run.program.asks_row_ids else feed), left

    def _feed_values(self, run: _Run, batch: ReadBatch) -> tuple[Iterator[tuple[Any, ...]], Iterator[object]]:
        program, begin, end = run.program, run.begin, run.end
        if batch.fields is not None:
            return program.columns.feed(run.fields(batch.fields), batch.published[begin:end])
        left = iter(list(batch.documents[begin:end]))
        if self._followers:
            return self._feed_in_time(program, left, batch, begin), left
        return program.binding.feed(left, batch.published[begin:end]), left

    def _feed_without_row_ids(self, feed: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yield the values of each document, and clear the last inserted row id before the document runs."""
        for values in feed:
            self._guard.db.set_last_insert_rowid(0)
            yield values

    @staticmethod
    def _feed_all(program: Program, batch: ReadBatch) -> Iterator[tuple[Any, ...]]:
        """Return the parameter values of all documents of one transform."""
        which = program.transform.index
        is_own = [transform == which for transform in batch.transforms]
        published = list(itertools.compress(batch.published, is_own))
        if batch.fields is None:
            return program.binding.feed(itertools.compress(batch.documents, is_own), published)
        return program.columns.feed(batch.fields[which], published)[0]

    def _feed_in_time(
        self, program: Program, documents: Iterator[Document], batch: ReadBatch, begin: int
    ) -> Iterator[tuple[Any, ...]]:
        values, which = program.binding.values, program.transform.index
        for index, document in enumerate(documents, begin):
            for follower in self._followers:
                follower.begin(which, batch.clocks[index], document)
            yield values(document, batch.published[index])

    def _run_steps(self, run: _Run, batch: ReadBatch) -> Iterator[tuple[int, Document]]:
        """Run one document and one statement at a time, for a block with several statements that return rows."""
        program = run.program
        feeds = [self._feed_of_step(step, run, batch) for step in program.steps]
        left, transform = iter(range(run.begin, run.end)), program.transform.index
        self._watch.begin(self._cursor, left)
        for index in left:
            for follower in self._followers:
                follower.begin(transform, batch.clocks[index], batch.documents[index])
            if program.asks_row_ids:
                self._guard.db.set_last_insert_rowid(0)
            for step, feed in zip(program.steps, feeds, strict=True):
                try:
                    for row in self._cursor.execute(step.statement.text, next(feed)):
                        if step.make is not None:
                            yield index, step.make(row)
                except ENVIRONMENT:
                    raise
                except (*FAILURES, LambdaError) as exc:
                    failure = Failure(program, batch.documents[index], batch.published[index], exc, index, step)
                    raise explain(failure, self._guard, self._watch) from exc

    @staticmethod
    def _feed_of_step(step: Step, run: _Run, batch: ReadBatch) -> Iterator[tuple[Any, ...]]:
        published = batch.published[run.begin : run.end]
        if batch.fields is None:
            return step.binding.feed(iter(batch.documents[run.begin : run.end]), published)
        return step.columns.feed(run.fields(batch.fields), published)[0]

    def given(self, transform: int, document: Document, published: int) -> dict[str, Any]:
        """Return the values of the parameters of a transform's lambda, by parameter."""
        given: dict[str, Any] = {}
        for step in self._programs[transform].steps:
            values = step.binding.values(document, published)
            given.update(zip((f"${name}" for name in step.statement.parameters), values, strict=True))
        return given

    def copied(self, transform: int) -> list[dict[str, str]]:
        """Return, for each statement that publishes, the fields that it selects unchanged, by property."""
        program = self._programs[transform]
        projections = self._sources[transform]
        published = []
        for step in program.steps:
            if step.make is not None:
                is_plain = not _OTHER_VALUES.search(step.statement.text)
                names = (name[1:] for name in step.statement.columns if is_plain and name.startswith("$"))
                fields = [item for name in names if (item := find_projection(name, projections))]
                published.append({item.field: item.field for item in fields if not is_converted(item)})
        return published

    def state(self) -> None:
        """Return None: all state is in tables."""

    def mark(self) -> None:
        """Begin a savepoint."""
        self._execute(f"SAVEPOINT {_MARK}")

    def keep(self) -> None:
        """Release the savepoint."""
        self._execute(f"RELEASE {_MARK}")

    def undo(self) -> None:
        """Roll the database back to the savepoint."""
        self._cursor.close(True)  # ends statements that failed or were not finished
        self._cursor = self._guard.db.cursor()
        self._execute(f"ROLLBACK TO {_MARK}; RELEASE {_MARK}")

    def _execute(self, sql: str) -> None:
        """Execute statements that lambdas may not execute."""
        self._guard.__exit__()
        try:
            self._guard.db.execute(sql).fetchall()
        finally:
            self._guard.__enter__()

    def prepare_commit(self) -> None:
        """Do nothing: all state is in the database already."""

    def close(self) -> None:
        """Close running statements, and release the database."""
        with self._guarded:
            self._cursor.close(True)


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive documents of one transform.

    Attributes:
        program: program of the transform.
        begin: index of the first document in the batch.
        end: index after the last document.
        taken: number of the transform's documents before this run.
    """

    program: Program
    begin: int
    end: int
    taken: int

    def fields(self, fields: Sequence[Sequence[Sequence[JSON]]]) -> list[Sequence[JSON]]:
        """Return the values of this run in each field of a batch."""
        part = slice(self.taken, self.taken + self.end - self.begin)
        return [values[part] for values in fields[self.program.transform.index]]


def _layout_of(programs: Sequence[Program]) -> RowLayout | None:
    """Return the layout of all rows; None if there are several."""
    if not all(program.together for program in programs):
        return None
    layouts = {program.layout for program in programs if program.make is not None}
    return layouts.pop() if len(layouts) == 1 else None
