"""Messages from workers to the driver: the progress of a running transaction, and its events.

Spark's workers write their counts to files. A transaction in this process reports its counts directly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import orjson

from derive.errors import FlowError
from derive.storage.metadata.chain import Chain, Link
from derive.storage.metadata.descriptions import ShardData, Work
from derive.storage.segments.partition import own_path
from derive.time.positions import Segment


@dataclass(frozen=True, slots=True)
class PartBegin:
    """The begin of a further part of a derivation's past within a transaction of a cycle.

    Attributes:
        positions: position of each input, by its index.
        upper: `upper` of the output.
    """

    positions: Mapping[int, int]
    upper: int


@dataclass(frozen=True, slots=True)
class Reached:
    """Progress of one derivation in a transaction of a cycle.

    Attributes:
        task: name of the derivation.
        positions: position of each input, by its index: the adjusted timestamp below which it is processed.
        upper: `upper` of the output.
        begins: begins of the parts of its past after the first, in order.
    """

    task: str
    positions: Mapping[int, int]
    upper: int
    begins: tuple[PartBegin, ...] = ()

    def to_json(self) -> list[Any]:
        """Return the progress as a JSON array."""
        begins = [[list(begin.positions.items()), begin.upper] for begin in self.begins]
        return [self.task, list(self.positions.items()), self.upper, begins]

    @staticmethod
    def from_json(value: Sequence[Any]) -> Reached:
        """Return the progress that `to_json` described."""
        task, positions, upper, begins = value
        parts = tuple(PartBegin(dict(before), least) for before, least in begins)
        return Reached(task, dict(positions), upper, parts)


@dataclass(frozen=True, slots=True)
class Message:
    """Outcome of one part of a transaction.

    Attributes:
        segments: written files.
        shards: name of the attempt that prepared each shard's state, by shard number.
        documents_in: number of processed source documents.
        documents_out: number of written documents.
        error: JSON of a `FlowError`; None for success.
        rounds: number of completed rounds of a cycle.
        reached: progress of a derivation of a cycle.
        behind: for each binding (by state key) whose endpoint is behind the recorded progress, the adjusted timestamp
            below which the endpoint is complete; then no documents were stored.
        is_shared: true if several shards have published documents of one key in one tick.
        cleared: state keys of bindings that are empty at the endpoint, and start again.
        rejected: written files of the quarantine.
        work: work of each transform of a derivation; empty for none.
        links: links that the attempt adds to the chain of each shard whose state travels, by shard number.
        log: entries of logs, as JSON texts, of a worker without the data folder.
        kept: changed data of the shards of a materialization, by number; also after an error.
    """

    segments: tuple[Segment, ...] = ()
    shards: Mapping[int, str] = field(default_factory=dict)
    documents_in: int = 0
    documents_out: int = 0
    error: dict[str, Any] | None = None
    rounds: int = 0
    reached: Reached | None = None
    behind: Mapping[str, int] = field(default_factory=dict)
    is_shared: bool = False
    cleared: tuple[str, ...] = ()
    rejected: tuple[Segment, ...] = ()
    work: tuple[Work, ...] = ()
    links: Mapping[int, Chain] = field(default_factory=dict)
    log: tuple[str, ...] = ()
    kept: Mapping[int, ShardData] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the message as JSON text."""
        segments = [segment.to_json() for segment in self.segments]
        reached = self.reached and self.reached.to_json()
        counts = [self.documents_in, self.documents_out]
        shards = list(self.shards.items())
        rejected = [segment.to_json() for segment in self.rejected]
        work = [[done.documents, done.published, done.micros] for done in self.work]
        links = [[shard, [link.to_json() for link in chain]] for shard, chain in self.links.items()]
        rest = [self.error, self.rounds, reached, self.behind, self.is_shared, self.cleared, rejected, work, links]
        kept = [[shard, data.flow.decode(), data.driver.decode()] for shard, data in self.kept.items()]
        return orjson.dumps([segments, shards, *counts, *rest, self.log, kept]).decode()

    @staticmethod
    def from_json(text: str) -> Message:
        """Return the message that `to_json` described."""
        segments, shards, documents_in, documents_out, error, *rest = orjson.loads(text)
        rounds, reached, behind, is_shared, cleared, rejected, work, links, log, kept = rest
        return Message(
            tuple(map(Segment.from_json, segments)),
            dict(shards),
            documents_in,
            documents_out,
            error,
            rounds,
            reached and Reached.from_json(reached),
            behind,
            is_shared,
            tuple(cleared),
            tuple(map(Segment.from_json, rejected)),
            tuple(Work(*counts) for counts in work),
            {shard: tuple(map(Link.from_json, chain)) for shard, chain in links},
            tuple(log),
            {shard: ShardData(flow.encode(), driver.encode()) for shard, flow, driver in kept},
        )


Progress: TypeAlias = Callable[[int], None]
"""Function that is called regularly with the number of documents processed so far."""

_STEP = 10_000


def work_of(messages: Iterable[Message], keys: Sequence[str]) -> dict[str, Work]:
    """Return the work of each lambda with documents, by state key.

    Args:
        messages: outcomes of a transaction's parts.
        keys: state key of each transform.
    """
    sums = dict.fromkeys(keys, Work())
    for message in messages:
        for key, done in zip(keys, message.work, strict=False):  # messages without lambdas have no work
            sums[key] += done
    return {key: done for key, done in sums.items() if done.documents}


def raise_first(messages: Iterable[Message]) -> None:
    """Raise an error of the messages, if there is one: the same error for any order, and a permanent one if possible.

    Raises:
        FlowError: a message has an error.
    """
    errors = [FlowError.from_json(message.error) for message in messages if message.error]
    if errors:
        raise min(errors, key=lambda error: (error.heals, orjson.dumps(error.to_json())))


class Named(Protocol):
    """A named object."""

    @property
    def name(self) -> str:
        """Return the name of the task."""


class Watched(Protocol):
    """The part of a plan that progress needs."""

    @property
    def spec(self) -> Named:
        """Return the task."""

    @property
    def root(self) -> Path:
        """Return the data folder."""

    @property
    def token(self) -> str:
        """Return the unique identifier of the transaction."""

    @property
    def parts(self) -> Sequence[Watched]:
        """Return the plans of all participating tasks."""


_listeners: dict[str, Callable[[int], None]] = {}
"""Listeners in this process, by the token of the transaction."""


@contextmanager
def listening(plan: Watched, listener: Callable[[int], None]) -> Iterator[None]:
    """Listen to the progress of a transaction in this process while the block runs.

    Args:
        plan: the transaction.
        listener: called with the number of newly processed documents (0 for documents of other derivations of a cycle);
            an exception that it raises ends the running part.
    """
    for part in plan.parts:
        _listeners[part.token] = listener if part is plan else lambda _: listener(0)
    try:
        yield
    finally:
        for part in plan.parts:
            del _listeners[part.token]


class Counter:
    """Counts processed documents in a file for the driver, or for a listener in this process.

    Attributes:
        name: name of the part of the transaction.
        total: number of processed documents.
    """

    def __init__(self, plan: Watched, name: str) -> None:
        self.name = name
        self.total = 0
        self._listener = _listeners.get(plan.token)
        self._file = progress_folder(plan.root, plan.spec.name) / plan.token / name

    def add(self, count: int) -> None:
        """Add to the count; the file is written about every 10,000 documents."""
        before, self.total = self.total, self.total + count
        if self._listener is not None:
            self._listener(count)
        elif self.total // _STEP != before // _STEP:
            with suppress(OSError):  # progress is optional
                self._file.write_bytes(self.total.to_bytes(8, "little"))


def progress_folder(root: Path, task: str) -> Path:
    """Return the folder for the counts of a task's workers, with a subfolder for each attempt."""
    return root / own_path("tmp", task)
