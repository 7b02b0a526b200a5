"""`flowctl test --create`: a test of the catalog out of real history.

An explanation knows the source documents from which the document of a key follows. The test ingests these documents in
their order, and verifies everything that follows from them alone, also under other keys. The expected documents are
those of a run of the test, and the document of the key is compared with the stored one. With a read delay, the steps
have the times of the documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from derive.plural import counted

if TYPE_CHECKING:
    from derive.protocol.specs import CatalogSpec, DerivationSpec, Document
    from derive.storage.store import Store
    from derive.testing import CatalogSession
    from derive.why.explain import Explanation

_MOST_DOCUMENTS = 1_000
"""Largest number of source documents of a test."""


@dataclass(frozen=True, slots=True)
class CreatedTest:
    """A test out of history.

    Attributes:
        text: the YAML of the test.
        documents: number of source documents.
        is_equal: whether the test gives the stored document of the key.
    """

    text: str
    documents: int
    is_equal: bool


@dataclass(frozen=True, slots=True)
class _Group:
    """Documents of one source that one step ingests."""

    source: str
    clock: int
    documents: list[Document]


def create_test(
    store: Store, catalog: CatalogSpec, scratch: Path, name: str, collection: str, key_text: str
) -> CreatedTest:
    """Return a test that derives the document of a key from the source documents of the data folder.

    Args:
        store: the data folder.
        catalog: the catalog.
        scratch: an empty folder.
        name: name of the test.
        collection: name of the derived collection.
        key_text: the key, as a JSON array or as one component.

    Raises:
        UsageError: the collection is not derived, has no document with the key, or needs too many source documents.
    """
    from derive.catalog.graph import tasks_leading_to
    from derive.cli.why import key_of, unknown_key
    from derive.errors import UsageError
    from derive.testing import CatalogSession
    from derive.why.explain import Explainer, Question

    spec = catalog.find_collection(collection)
    if collection not in catalog.derivations:
        raise UsageError(f"'{collection}' is not derived, so there is nothing to test")
    if name in catalog.tests:
        raise UsageError(f"the catalog has a test '{name}' already")
    derivation = catalog.derivations[collection]
    key = key_of(spec, key_text)
    explanation = Explainer(catalog, store, scratch / "why").explain(collection, Question(frozenset([key])))
    if not explanation.stored.get(key):
        known = store.collection(collection)
        raise unknown_key(store, spec, key, known.upper if known else 0)
    tasks = tasks_leading_to(catalog, [collection])
    groups = _groups(explanation, derivation)
    is_timed = any(transform.input.read_delay for transform in derivation.transforms)
    begin = _time(groups[0].clock) if is_timed else None
    session = CatalogSession(catalog, scratch / "test", begin=begin, tasks=tasks)
    try:
        steps, contents = _run(session, collection, groups, max(row.clock for row in explanation.stored[key]))
    finally:
        session.close()
    stored = _reduced(explanation, key)
    text = "\n".join([f"tests:\n  {_json(name)}:", *steps, *_verify(collection, contents)])
    return CreatedTest(text, sum(len(group.documents) for group in groups), stored in map(_json, contents))


def _groups(explanation: Explanation, derivation: DerivationSpec) -> list[_Group]:
    """Return the source documents in their order; documents of feedback reads follow from the others."""
    from derive.document.exact import parse_exact
    from derive.errors import UsageError

    rows = {
        (row.clock, row.seq, derivation.transforms[row.transform].input.source, row.key): row.text
        for part in explanation.rows.values()
        for row in part
        if row.transform < len(derivation.transforms) and not derivation.transforms[row.transform].input.feedback
    }
    if not rows or len(rows) > _MOST_DOCUMENTS:
        reason = f"follows from {counted(len(rows), 'source document')}" if rows else "follows from no source document"
        raise UsageError(f"the document {reason}, and a test has up to {_MOST_DOCUMENTS:,}", hint="choose another key")
    groups: list[_Group] = []
    last: tuple[str, int, bytes] | None = None
    tick = derivation.tick
    for (clock, _, source, key), text in sorted(rows.items()):
        if last is None or last[:2] != (source, clock // tick) or key <= last[2]:
            groups.append(_Group(source, clock, []))
        groups[-1].documents.append(parse_exact(text.encode()))
        last = source, clock // tick, key
    return groups


def _run(
    session: CatalogSession, collection: str, groups: Sequence[_Group], end: int
) -> tuple[list[str], list[Document]]:
    """Ingest the documents; return the steps, and the contents of the collection after them."""
    from derive.document.clock import format_duration

    steps = []
    for group in groups:
        at = _time(group.clock) if session.is_timed else None
        session.ingest(group.source, group.documents, at=at)
        steps += ["    - ingest:", f"        collection: {_json(group.source)}"]
        steps += [f'        at: "{at}"'] if at else []
        steps += ["        documents:", *(f"          - {_json(document)}" for document in group.documents)]
    if session.is_timed and end > groups[-1].clock:
        duration = format_duration(end - groups[-1].clock)
        session.advance(duration)
        steps.append(f"    - advance: {duration}")
    return steps, session.documents(collection)


def _verify(collection: str, contents: Sequence[Document]) -> list[str]:
    lines = ["    - verify:", f"        collection: {_json(collection)}"]
    if not contents:
        return [*lines, "        documents: []"]
    return [*lines, "        documents:", *(f"          - {_json(document)}" for document in contents)]


def _reduced(explanation: Explanation, key: bytes) -> str:
    """Return the JSON of the stored document of a key."""
    from derive.document.exact import parse_exact
    from derive.reduce.combiner import Combiner

    spec = explanation.spec
    combiner = Combiner(spec.collection.read_schema, name=spec.name)
    return _json(combiner.full(parse_exact(row.text.encode()) for row in explanation.stored[key]))


def _time(clock: int) -> str:
    from derive.document.clock import format_rfc3339

    return format_rfc3339(clock)


def _json(value: object) -> str:
    from derive.document.exact import dump_exact

    return dump_exact(value).decode()
