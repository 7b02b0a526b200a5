"""Traces: the causes of a document along the chain of derivations, one level after another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from derive.document.exact import dump_exact, parse_exact
from derive.document.pointer import MISSING
from derive.reduce.combiner import Combiner
from derive.time import BEGINNING
from derive.time.positions import offset_of
from derive.why.explain import Explainer, Explanation, Question, reasons_of
from derive.why.observe import Observation, observe
from derive.why.replay import SourceRow
from derive.why.scan import Match, ScanBounds, StoredDocument, scan

MOST_DOCUMENTS = 6
"""Largest number of documents of a key, and of causes of a document, that a trace has."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A source document that published a part of a derived document.

    Attributes:
        transform: name of the transform; None for the end of a tick.
        source: name of the source collection; empty for the end of a tick.
        row: the source document.
        read_delay: microseconds for which the transform waited before it read the document.
        feedback: microseconds for which the transform waited because the source lies on a cycle.
        observation: its processing; None for the end of a tick.
        above: the trace of the source document; None if it was ingested, or if the trace ends.
        is_derived: whether the source is a derived collection.
    """

    transform: str | None
    source: str
    row: SourceRow
    read_delay: int
    feedback: int
    observation: Observation | None
    above: TracedDocument | None
    is_derived: bool


@dataclass(frozen=True, slots=True)
class TracedDocument:
    """A stored document of a derived collection.

    Attributes:
        stored: the document.
        reduced: JSON text of the key's value up to this document; None if the document is the value, or belongs to a
            higher level.
        causes: the latest documents that published it, in order.
        omitted: number of earlier causes.
        is_equal: whether the replay gives this document.
    """

    stored: StoredDocument
    reduced: str | None
    causes: tuple[Cause, ...]
    omitted: int
    is_equal: bool


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace of the value of one key.

    Attributes:
        collection: name of the collection.
        key: packed key.
        as_of: timestamp of the value.
        value: JSON text of the value; None if it is deleted.
        documents: the latest documents of the key that count, in order.
        omitted: number of earlier documents.
        omitted_value: JSON text of the reduction of the earlier documents; None if the value does not depend on earlier
            documents.
        is_derived: whether the collection is derived; if not, its documents were ingested.
        is_equal: whether the replay gives the stored documents.
        replayed: number of replayed documents.
        candidates: number of source documents in the ticks of the stored documents.
        difference: the first stored text that the replay does not give, and the replayed text; None for no difference.
        reasons: reasons of a difference.
    """

    collection: str
    key: bytes
    as_of: int
    value: str | None
    documents: tuple[TracedDocument, ...]
    omitted: int
    omitted_value: str | None
    is_derived: bool
    is_equal: bool = True
    replayed: int = 0
    candidates: int = 0
    difference: tuple[StoredDocument | None, str | None] | None = None
    reasons: tuple[str, ...] = ()


def trace(explainer: Explainer, name: str, key: bytes, end: int, depth: int) -> Trace | None:
    """Return the trace of the value of a key; None if no document has the key.

    Args:
        explainer: explains documents of the data folder.
        name: name of the collection.
        key: packed key.
        end: timestamp after the timestamp of the value.
        depth: number of levels of sources above the collection's own causes.

    Raises:
        LambdaError: a lambda failed.
        UsageError: too many documents would be replayed, or a former definition cannot be restored.
    """
    spec = explainer.catalog.collections[name]
    question = Question(frozenset([key]), BEGINNING, end)
    is_derived = name in explainer.catalog.derivations
    explanation = explainer.explain(name, question) if is_derived else None
    bounds = ScanBounds(end=end, match=Match.of_keys([key]))
    stored = explanation.stored[key] if explanation else sorted(scan(explainer.store, spec, bounds))
    if not stored:
        return None
    combiner = Combiner(spec.read_schema, name=name)
    texts = [row.text for row in stored]
    value = _reduced(combiner, texts)
    is_last = combiner.takes_last or _replaces(combiner, texts, value)
    first = len(stored) - (1 if is_last else min(len(stored), MOST_DOCUMENTS))
    reduced = (
        {} if is_last else {row: _reduced(combiner, texts[: at + 1]) for at, row in enumerate(stored) if at >= first}
    )
    shown = stored[first:]
    if explanation is None:
        documents = {row: TracedDocument(row, reduced.get(row), (), 0, True) for row in shown}
        return Trace(name, key, end - 1, value, tuple(documents.values()), first, None, is_derived=False)
    documents = _Tracer(explainer).documents({name: (explanation, shown)}, depth, reduced)[name]
    is_equal = explanation.is_equal(key)
    return Trace(
        name,
        key,
        end - 1,
        value,
        tuple(documents[row] for row in shown),
        first,
        None if is_last or not first else _reduced(combiner, texts[:first]),
        is_derived=True,
        is_equal=is_equal,
        replayed=explanation.replayed,
        candidates=explanation.candidates,
        difference=None if is_equal else _difference(explanation, key),
        reasons=() if is_equal else tuple(reasons_of(explainer, name, question, explanation)),
    )


def _reduced(combiner: Combiner, texts: Iterable[str]) -> str | None:
    """Return the JSON text of the reduction of documents; None if they end with a deletion."""
    value = combiner.full(parse_exact(text.encode()) for text in texts)
    return None if value is MISSING else dump_exact(value).decode()


def _replaces(combiner: Combiner, texts: Sequence[str], value: str | None) -> bool:
    """Return whether the last document replaces each earlier document; it is not enough that it equals the value.

    Reductions are associative: if no single document changes the last document, all together do not change it.
    """
    last = texts[-1]
    if _reduced(combiner, [last]) != value:
        return False
    return all(_reduced(combiner, [text, last]) == value for text in dict.fromkeys(texts[:-1]))


def _difference(explanation: Explanation, key: bytes) -> tuple[StoredDocument | None, str | None]:
    """Return the first stored document that the replay does not give, and the text that it gives at its timestamp."""
    made = explanation.made.get(key, [])
    for row in explanation.stored[key]:
        if (row.clock, row.seq, row.text) not in made:
            return row, next((text for clock, _, text in made if clock == row.clock), None)
    stored = {(row.clock, row.seq, row.text) for row in explanation.stored[key]}
    return None, next((row.text for row in made if row not in stored), None)


_Level = Mapping[str, tuple[Explanation, Sequence[StoredDocument]]]
"""Explained documents of one level, by collection."""


class _Tracer:
    """Traces documents, level by level."""

    def __init__(self, explainer: Explainer) -> None:
        self._explainer = explainer

    def documents(
        self, level: _Level, depth: int, reduced: Mapping[StoredDocument, str | None]
    ) -> dict[str, dict[StoredDocument, TracedDocument]]:
        """Return the trace of each document of a level, by collection.

        Args:
            level: the documents with their explanations.
            depth: number of levels above this one.
            reduced: JSON text of the key's value up to a document.
        """
        causes = {
            (name, row): _causes_of(explanation, row) for name, (explanation, rows) in level.items() for row in rows
        }
        observed: dict[tuple[str, SourceRow], Observation] = {}
        for name, (explanation, rows) in level.items():
            shown = dict.fromkeys(cause for row in rows for cause in causes[name, row][-MOST_DOCUMENTS:])
            observed.update(
                ((name, cause), seen) for cause, seen in observe(self._explainer, explanation, shown).items()
            )
        above = self._above(level, observed, depth)
        traced: dict[str, dict[StoredDocument, TracedDocument]] = {}
        for name, (explanation, rows) in level.items():
            traced[name] = {}
            for row in rows:
                several = causes[name, row]
                shown_causes = several[-MOST_DOCUMENTS:]
                traced[name][row] = TracedDocument(
                    row,
                    reduced.get(row),
                    tuple(
                        self._cause(explanation, cause, observed.get((name, cause)), above) for cause in shown_causes
                    ),
                    len(several) - len(shown_causes),
                    explanation.is_equal(row.key),
                )
        return traced

    def _above(
        self, level: _Level, observed: Mapping[tuple[str, SourceRow], Observation], depth: int
    ) -> dict[tuple[str, bytes, int], TracedDocument]:
        """Return the traces of the derived source documents of a level, by collection, packed key and timestamp."""
        chosen: dict[str, set[tuple[bytes, int]]] = {}
        for name, cause in observed if depth > 0 else ():
            spec = level[name][0].part(cause.part).spec
            source = spec.inputs[cause.transform].source
            if source in self._explainer.catalog.derivations:
                chosen.setdefault(source, set()).add((cause.key, cause.clock))
        upper: dict[str, tuple[Explanation, list[StoredDocument]]] = {}
        for source, pairs in chosen.items():
            explanation = self._explainer.explain(source, Question.of(pairs))
            upper[source] = (explanation, [row for rows in explanation.stored.values() for row in rows])
        if not upper:
            return {}
        return {
            (source, row.key, row.clock): document
            for source, documents in self.documents(upper, depth - 1, {}).items()
            for row, document in documents.items()
        }

    def _cause(
        self,
        explanation: Explanation,
        row: SourceRow,
        observation: Observation | None,
        above: Mapping[tuple[str, bytes, int], TracedDocument],
    ) -> Cause:
        spec = explanation.part(row.part).spec
        if row.transform == len(spec.transforms):
            return Cause(None, "", row, 0, 0, None, None, is_derived=False)
        read = spec.inputs[row.transform]
        return Cause(
            read.name,
            read.source,
            row,
            read.read_delay,
            offset_of(read, spec.tick) - read.read_delay,
            observation,
            above.get((read.source, row.key, row.clock)),
            is_derived=read.source in self._explainer.catalog.derivations,
        )


def _causes_of(explanation: Explanation, row: StoredDocument) -> list[SourceRow]:
    """Return the source documents that published a stored document, in order and each once."""
    causes = []
    for publication in explanation.causes.get(row.key, []):
        part = explanation.part(publication.cause.part)
        is_same_tick = publication.clock // part.spec.tick == row.clock // part.spec.tick
        is_own = is_same_tick and part.clamp <= row.clock < part.upper
        if is_own or row.clock < explanation.since:
            causes.append(publication.cause)
    return list(dict.fromkeys(causes))
