"""Derivations in SQL, built by hand, and run over documents as a shard would."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import apsw

from connectors.derive_sqlite import SqliteConnector
from connectors.derive_sqlite.program import SqliteConfig
from connectors.derive_sqlite.session import SqliteSession
from derive.errors import LambdaError
from derive.position import Position, Script
from derive.protocol.derive import PublishedColumns, ReadBatch
from derive.protocol.specs import (
    CollectionSpec,
    DerivationSpec,
    Document,
    InputSpec,
    LambdaLimits,
    ProjectionSpec,
    ShuffleSpec,
    TransformSpec,
)

CLOCK = 1_700_000_000_123_456  # 2023-11-14T22:13:20.123456Z
AT = Position("flow.yaml", 7, 3)


def field(name: str, *types: str, must: bool = False, **rest: Any) -> ProjectionSpec:
    pointer = rest.pop("pointer", f"/{name}")
    return ProjectionSpec(name, pointer, frozenset(types), "must" if must else "may", **rest)


def say_nothing(level: str, message: str) -> None:
    raise AssertionError(f"SQL logs nothing, and not {level}: {message}")


FIELDS = (
    field("amount", "fractional", "integer", must=True),
    field("flow_document", "object", must=True, pointer=""),
    field("flow_published_at", "string", must=True, pointer="/_meta/uuid"),
    field("id", "integer", must=True),
    field("sender", "string", must=True),
)


def script(text: str, file: str = "lambda.sql") -> Script:
    return Script(text, text, Position(file))


BY_ID = ShuffleSpec("key", ("/id",), (0,), ("integer",))


def derivation(
    *lambdas: str | None,
    fields: Sequence[ProjectionSpec] = FIELDS,
    migrations: Sequence[str] = (),
    shuffles: Sequence[ShuffleSpec] = (),
    seconds: float = 60.0,
) -> DerivationSpec:
    """A derivation; transforms beyond `shuffles` are shuffled by `/id`."""
    source = CollectionSpec("acme/in", ("/id",), (0,), True, True, tuple(fields), AT)
    transforms = tuple(
        TransformSpec(
            input=InputSpec(index, f"from{index}", "acme/in", AT),
            shuffle=shuffle,
            script=None if text is None else script(text),
        )
        for index, (text, shuffle) in enumerate(zip(lambdas, [*shuffles, *[BY_ID] * len(lambdas)], strict=False))
    )
    return DerivationSpec(
        collection=CollectionSpec("acme/out", ("/id",), (0,), True, True, (), AT),
        connector="sqlite",
        connector_config=SqliteConfig(tuple(script(text, f"{index}.sql") for index, text in enumerate(migrations))),
        transforms=transforms,
        sources={"acme/in": source},
        tick=1_000_000,
        limits=LambdaLimits(sqlite_seconds=seconds),
    )


def database() -> apsw.Connection:
    db = apsw.Connection(":memory:")
    db.execute("BEGIN")
    return db


def batch(documents: Sequence[Document], transforms: Sequence[int] | None = None, clock: int = CLOCK) -> ReadBatch:
    """Documents a second apart, each of which was published an hour before its adjusted clock."""
    clocks = [clock + place * 1_000_000 for place in range(len(documents))]
    return ReadBatch(
        transforms or [0] * len(documents), clocks, [each - 3_600_000_000 for each in clocks], list(documents)
    )


def run(
    spec: DerivationSpec, documents: Sequence[Document], transforms: Sequence[int] | None = None
) -> list[tuple[int, Document]]:
    """What lambdas publish, one by one and, where that can be, as columns: it must be the same."""
    read = batch(documents, transforms)
    published, failure = outcome(spec, lambda session: session.invoke(read))
    columns, column_failure = outcome(spec, lambda session: from_columns(session.invoke_columns(read)))
    if columns is not None:
        assert repr(columns) == repr(published)
        assert repr(column_failure) == repr(failure)
    if failure is not None:
        raise failure
    assert published is not None
    return published


def outcome(
    spec: DerivationSpec, invoke: Callable[[SqliteSession], Iterator[tuple[int, Document]] | None]
) -> tuple[list[tuple[int, Document]] | None, LambdaError | None]:
    """What a new session publishes, if it can, and the error that ends it."""
    db = database()
    session = SqliteConnector().open(spec, db, say_nothing)
    try:
        pairs = invoke(session)
        return (None if pairs is None else list(pairs)), None
    except LambdaError as error:
        return [], error
    finally:
        session.close()
        db.close()


def from_columns(parts: Iterator[PublishedColumns] | None) -> Iterator[tuple[int, Document]] | None:
    """The same as `invoke` gives."""
    if parts is None:
        return None
    return (pair for part in parts for pair in zip(part.causes, part.columns.documents(), strict=True))


def publish(sql: str, document: Mapping[str, Any], *fields: ProjectionSpec) -> list[Document]:
    """What a lambda publishes for one document of these fields."""
    return [each for _, each in run(derivation(sql, fields=fields or FIELDS), [dict(document)])]
