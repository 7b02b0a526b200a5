"""A session: compiled lambdas over one shard's state.

Consecutive documents of one transform go to SQLite in a single `executemany` over an iterator. SQLite pulls the next
document only when the rows of the one before are finished, so the row at hand always belongs to the document pulled
last; how many are left in the iterator says which that is, and nothing is done per document that returns no row.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from operator import length_hint
from typing import Any

import apsw

from connectors.derive_sqlite.config import migrations_of
from connectors.derive_sqlite.failure import Failure, explain
from connectors.derive_sqlite.migration import apply_migrations
from connectors.derive_sqlite.program import Program, compile_program
from derive.errors import LambdaError
from derive.protocol.derive import ReadBatch
from derive.protocol.specs import DerivationSpec, Document
from derive.sql.block import first_issue
from derive.sql.chance import Chance, calls_chance
from derive.sql.failure import ENVIRONMENT, FAILURES
from derive.sql.guard import Guard
from derive.sql.watch import Watch


class SqliteSession:
    """Lambdas of a derivation, open over a shard's database.

    Args:
        spec: the derivation.
        database: its state, inside an open transaction.

    Raises:
        LambdaError: a migration or a lambda is wrong.
    """

    def __init__(self, spec: DerivationSpec, database: apsw.Connection) -> None:
        migrations = migrations_of(spec)
        scripts = [*migrations, *(transform.script for transform in spec.transforms)]
        texts = [script.text for script in scripts if script]
        self._chance = Chance() if calls_chance(texts) else None
        if self._chance:
            self._chance.register(database)
        self._guard = Guard(database)
        self._watch = Watch(database, spec.limits.sqlite_seconds)
        apply_migrations(self._guard, self._watch, migrations, spec.name, spec.collection.position)
        self._guarded = ExitStack()
        self._guarded.enter_context(self._guard)
        self._guarded.enter_context(self._watch)
        self._programs: list[Program] = []
        for transform in spec.transforms:
            program = compile_program(self._guard, spec, transform)
            if isinstance(program, list):
                raise first_issue(program[0])
            self._programs.append(program)
        self._cursor = database.cursor()

    @property
    def flushes(self) -> bool:
        """Never: statements publish for a document."""
        return False

    def invoke(self, batch: ReadBatch) -> Iterator[tuple[int, Document]]:
        """Run the lambdas over a batch, run by run of one transform."""
        transforms = batch.transforms
        begin = 0
        count = len(transforms)
        while begin < count:
            which = transforms[begin]
            end = begin + 1 if len(self._programs) > 1 else count
            while end < count and transforms[end] == which:
                end += 1
            program = self._programs[which]
            if program.together:
                yield from self._run_together(program, batch, begin, end)
            else:
                yield from self._run_steps(program, batch, begin, end)
            begin = end

    def _run_together(self, program: Program, batch: ReadBatch, begin: int, end: int) -> Iterator[tuple[int, Document]]:
        """The whole block for each document of a run."""
        if not program.steps:
            return
        make, last = program.make, end - 1
        left = iter(list(batch.documents[begin:end]))
        self._watch.begin(self._cursor, left)
        feed = program.binding.feed(left, batch.published[begin:end])
        if self._chance is not None:
            feed = self._feed_in_time(self._chance, program, left, batch, begin)
        try:
            rows = self._cursor.executemany(program.sql, feed)
            if make is None:
                for _ in rows:
                    pass
                return
            for row in rows:
                yield last - length_hint(left), make(row)
        except ENVIRONMENT:
            raise
        except (*FAILURES, LambdaError) as exc:
            index = last - length_hint(left)
            failure = Failure(program, batch.documents[index], batch.published[index], exc)
            raise explain(failure, self._guard, self._watch) from exc

    @staticmethod
    def _feed_in_time(
        chance: Chance, program: Program, documents: Iterator[Document], batch: ReadBatch, begin: int
    ) -> Iterator[tuple[Any, ...]]:
        values, which = program.binding.values, program.transform.index
        for index, document in enumerate(documents, begin):
            chance.begin(which, batch.clocks[index], document)
            yield values(document, batch.published[index])

    def _run_steps(self, program: Program, batch: ReadBatch, begin: int, end: int) -> Iterator[tuple[int, Document]]:
        """One document and one statement at a time, for a block of which several statements return rows."""
        left, transform = iter(range(begin, end)), program.transform.index
        self._watch.begin(self._cursor, left)
        for index in left:
            document, published = batch.documents[index], batch.published[index]
            if self._chance is not None:
                self._chance.begin(transform, batch.clocks[index], document)
            for step in program.steps:
                try:
                    for row in self._cursor.execute(step.statement.text, step.binding.values(document, published)):
                        if step.make is not None:
                            yield index, step.make(row)
                except ENVIRONMENT:
                    raise
                except (*FAILURES, LambdaError) as exc:
                    failure = Failure(program, document, published, exc, step)
                    raise explain(failure, self._guard, self._watch) from exc

    def prepare_commit(self) -> None:
        """All state is in the database already."""

    def close(self) -> None:
        """Let go of statements that are under way, and of the database."""
        self._cursor.close(True)
        self._guarded.close()
