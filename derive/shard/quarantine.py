"""Writing a quarantine: the source documents that the transforms of a transaction put aside.

The segments belong to the transaction: they are committed together with its documents and its state. An entry has the
timestamp at which a publication of its document would have been stored, so entries are the same for any number of
shards and any division into transactions (law L1).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from types import TracebackType

from derive.document.clock import format_rfc3339
from derive.document.exact import parse_exact
from derive.document.key import compile_keys, unpack
from derive.protocol.collection import is_of_sql, owner_of_version, quarantine_spec
from derive.protocol.specs import Document
from derive.shard.invoke import Rejected
from derive.shard.plan import Plan
from derive.storage.segments.partition import compile_labels
from derive.storage.segments.rows import WrittenRows
from derive.storage.segments.writer import SegmentWriter
from derive.time import BEGINNING
from derive.time.positions import Segment

_MOST_BUFFERED = 1_000
_SHOWN = 2_000
_DIGITS = 20


class QuarantineWriter:
    """Writes the entries of one part of a transaction; removes them if the block raises.

    Args:
        plan: the transaction.
        name: name of the part.
        attempt: number of this attempt.

    Attributes:
        clamp: lower bound of the timestamps of entries.
        last: greatest timestamp of an entry; `BEGINNING` without entries.
    """

    def __init__(self, plan: Plan, name: str, attempt: int) -> None:
        self.clamp = plan.clamp
        self.last = BEGINNING
        self._plan = plan
        self._name = f"{plan.attempt(attempt)}-{name}"
        self._writer: SegmentWriter | None = None
        self._entries: list[tuple[int, Document]] = []
        self._equal: Counter[bytes] = Counter()  # entries for equal rows of tables, by their origin

    def __enter__(self) -> QuarantineWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self._writer is not None:
            self._writer.abort()

    def put(self, rejected: Rejected) -> None:
        """Add an entry."""
        clock = max(rejected.adjusted, self.clamp)
        self.last = max(self.last, clock)
        self._entries.append((clock, self._entry(rejected)))
        if len(self._entries) >= _MOST_BUFFERED:
            self._flush()

    def close(self) -> tuple[Segment, ...]:
        """Write the remaining entries; return the durable files."""
        self._flush()
        return () if self._writer is None else tuple(self._writer.close())

    def _flush(self) -> None:
        if not self._entries:
            return
        spec = quarantine_spec(self._plan.spec.name)
        if self._writer is None:
            self._writer = SegmentWriter(self._plan.root, spec, self._name, is_valid=True)
        clocks, documents = [clock for clock, _ in self._entries], [document for _, document in self._entries]
        keys = compile_keys(spec.key, spec.key_defaults)(documents)
        seqs = [0] * len(documents)
        self._writer.write(WrittenRows.sorted_of(clocks, seqs, keys, documents, compile_labels(spec)(documents)))
        self._entries.clear()

    def _entry(self, rejected: Rejected) -> Document:
        spec = self._plan.spec
        transform = spec.transforms[rejected.transform]
        state_key, source = transform.input.state_key, transform.input.source
        origin = f"{state_key}\0{rejected.clock}\0{rejected.seq}\0".encode() + rejected.key
        if is_of_sql(source):  # a table may have equal rows
            self._equal[origin] += 1
            origin += b"\0%d" % self._equal[origin]
        error = rejected.error
        for name in (spec.name, *spec.sources):  # after a swap, the quarantine of a shadow is that of the live task
            if (live := owner_of_version(name)) is not None:
                error = error.replace(f"'{name}'", f"'{live}'")
        return {
            "id": hashlib.sha256(origin).hexdigest()[:_DIGITS],
            "input": state_key,
            "transform": transform.name,
            "source": owner_of_version(source) or source,
            "key": [parse_exact(value) if isinstance(value, bytes) else value for value in unpack(rejected.key)],
            "clock": format_rfc3339(rejected.clock),
            "error": error if len(error) <= _SHOWN else f"{error[:_SHOWN]}…",
            "document": rejected.document,
        }
