"""A session: compiled lambdas over one shard's state.

Consecutive documents of one transform go to SQLite in a single `executemany` over a generator. SQLite pulls the next
document only when the rows of the one before are finished, so the row at hand always belongs to the document pulled
last, and no call is made per document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import apsw
import orjson

from connectors.derive_sqlite.block import Statement, prepare
from connectors.derive_sqlite.chance import Chance, mentions_chance
from connectors.derive_sqlite.migration import apply_migrations
from connectors.derive_sqlite.parameter import compile_getter, find_projection, parameter_of, plain_property
from connectors.derive_sqlite.row import compile_row
from derive.errors import LambdaError
from derive.protocol.derive import ReadBatch
from derive.protocol.specs import DerivationSpec, Document, ProjectionSpec, TransformSpec
from derive.suggest import suggest

Bind = Callable[[Document, int], Sequence[Any]]
"""From a document and its clock to the values of a statement's parameters."""


class Block:
    """A transform's lambda, compiled.

    Attributes:
        transform: the transform.
        statements: what it runs, each with its binding and, if it returns rows, its row function.
        together: the whole block as one text, if at most one statement returns rows; its binding; its row function.
    """

    def __init__(self, db: apsw.Connection, spec: DerivationSpec, transform: TransformSpec) -> None:
        self.transform = transform
        self.what = f"the lambda of transform '{transform.name}'"
        projections = spec.sources[transform.source].projections
        statements = prepare(db, transform.script, self.what) if transform.script else []
        self.statements = [(each, self._bind([each], projections), self._row(each, projections)) for each in statements]
        returning = [row for _, _, row in self.statements if row is not None]
        self.sql = "".join(each.text if each.text.endswith(";") else f"{each.text}\n;" for each in statements)
        self.bind = self._bind(statements, projections)
        self.row = returning[0] if returning else None
        self.in_one_go = len(returning) <= 1

    def _bind(self, statements: Sequence[Statement], projections: Sequence[ProjectionSpec]) -> Bind:
        found = [self._projection(each, name, projections) for each in statements for name in each.parameters]
        plain = [plain_property(each) for each in found]
        if found and all(each is not None for each in plain):
            get = itemgetter(*plain)
            if len(plain) == 1:
                return lambda document, _: (get(document),)
            return lambda document, _: get(document)
        getters = [compile_getter(each) for each in found]
        return lambda document, published: [get(document, published) for get in getters]

    def _projection(self, statement: Statement, name: str, projections: Sequence[ProjectionSpec]) -> ProjectionSpec:
        found = find_projection(name, projections)
        if found is None:
            known = [parameter_of(each.field) for each in projections]
            guess = suggest(f"${name}", known)
            script = self.transform.script
            assert script is not None
            place = statement.offset + max(0, statement.text.find(f"${name}"))
            raise LambdaError(
                f"{self.what} has a parameter ${name}, which is no field of '{self.transform.source}'",
                position=script.locate(place, len(name) + 1),
                hint=f"did you mean {guess}?" if guess else f"there are {', '.join(known)}",
            )
        return found

    @staticmethod
    def _row(statement: Statement, projections: Sequence[ProjectionSpec]) -> Callable[[Sequence[Any]], Document] | None:
        if not statement.columns:
            return None
        selectable = {}
        for name in statement.parameters:
            projection = find_projection(name, projections)
            if projection is not None:
                selectable[f"${name}"] = projection
        return compile_row(statement.columns, selectable)


class SqliteSession:
    """Lambdas of a derivation, open over a shard's database."""

    def __init__(self, spec: DerivationSpec, database: apsw.Connection) -> None:
        self._cursor = database.cursor()
        texts = [each.text for each in spec.migrations]
        texts += [each.script.text for each in spec.transforms if each.script]
        self._chance = Chance() if mentions_chance(texts) else None
        if self._chance:
            self._chance.register(database)
        apply_migrations(database, spec.migrations, spec.name)
        self._blocks = [Block(database, spec, each) for each in spec.transforms]

    def invoke(self, batch: ReadBatch) -> Iterator[tuple[int, Document]]:
        """Run the lambdas over a batch, run by run of one transform."""
        transforms = batch.transforms
        begin = 0
        count = len(transforms)
        while begin < count:
            end = begin + 1
            which = transforms[begin]
            while end < count and transforms[end] == which:
                end += 1
            block = self._blocks[which]
            yield from self._run(block, batch, begin, end) if block.in_one_go else self._step(block, batch, begin, end)
            begin = end

    def _run(self, block: Block, batch: ReadBatch, begin: int, end: int) -> Iterator[tuple[int, Document]]:
        if not block.sql:
            return
        current = begin
        bind, chance, which = block.bind, self._chance, block.transform.index
        documents, published, clocks = batch.documents, batch.published, batch.clocks

        def pull() -> Iterator[Sequence[Any]]:
            nonlocal current
            for current in range(begin, end):
                if chance is not None:
                    chance.begin(which, clocks[current], documents[current])
                yield bind(documents[current], published[current])

        try:
            rows = self._cursor.executemany(block.sql, pull())
            make = block.row
            if make is None:
                for _ in rows:
                    pass
                return
            for row in rows:
                yield current, make(row)
        except (apsw.FullError, apsw.IOError):
            raise
        except (apsw.Error, OverflowError, TypeError, LambdaError) as exc:
            raise self._failure(block, documents[current], exc) from exc

    def _step(self, block: Block, batch: ReadBatch, begin: int, end: int) -> Iterator[tuple[int, Document]]:
        """One document and one statement at a time, for a block of which several statements return rows."""
        for current in range(begin, end):
            document = batch.documents[current]
            if self._chance is not None:
                self._chance.begin(block.transform.index, batch.clocks[current], document)
            try:
                for statement, bind, make in block.statements:
                    for row in self._cursor.execute(statement.text, bind(document, batch.published[current])):
                        if make is not None:
                            yield current, make(row)
            except (apsw.FullError, apsw.IOError):
                raise
            except (apsw.Error, OverflowError, TypeError, LambdaError) as exc:
                raise self._failure(block, document, exc) from exc

    @staticmethod
    def _failure(block: Block, document: Document, exc: Exception) -> LambdaError:
        reason = exc.message if isinstance(exc, LambdaError) else str(exc)
        script = block.transform.script
        shown = orjson.dumps(document).decode()[:1000]
        return LambdaError(
            f"{block.what} failed: {reason}; the document was {shown}", position=script.position if script else None
        )

    def prepare_commit(self) -> None:
        """All state is in the database already."""

    def close(self) -> None:
        """Let go of statements that are under way."""
        self._cursor.close(True)
