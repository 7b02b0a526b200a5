"""The past of a derivation, for replays: its parts with their definitions, and the times without a record.

A folder of an older version has no record of the transactions before its first commit by this version. For these
times, a replay assumes that the first known definition was in force, and that all transactions were regular. An
explanation reports these assumptions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from derive.document.clock import format_rfc3339
from derive.errors import UsageError
from derive.protocol.definition_text import restored
from derive.protocol.specs import DerivationSpec, TransformSpec
from derive.storage.metadata.descriptions import PastPart
from derive.storage.roles import Readable
from derive.time import BEGINNING, END_OF_TIME
from derive.time.positions import offset_of


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a derivation's past.

    Attributes:
        number: number of the part, ascending with time.
        spec: the definition that was in force.
        is_regular: true if the extents of its transactions do not matter; another part is one transaction.
        clamp: the output's `upper` before the part: no published timestamp is below it.
        upper: the output's `upper` after the part.
        ranges: the processed adjusted timestamps of each transform by its index: the first, and the one after the last.
    """

    number: int
    spec: DerivationSpec
    is_regular: bool
    clamp: int
    upper: int
    ranges: Mapping[int, tuple[int, int]]

    @property
    def has_steps(self) -> bool:
        """Return whether the part may have several steps, so that the order of its documents is not recorded.

        A transaction on a cycle has many steps. If priorities differ, each step reads the documents that exist.
        """
        inputs = self.spec.inputs
        return len({item.priority for item in inputs}) > 1 and any(item.feedback for item in inputs)

    def bounds(self, transform: TransformSpec, last: int = END_OF_TIME) -> tuple[int, int]:
        """Return the timestamps of the source that a transform read: the first, and the one after the last.

        Args:
            transform: a transform of the part's definition.
            last: adjusted timestamp from which on documents are left out.
        """
        read, offset = transform.input, offset_of(transform.input, self.spec.tick)
        begin, end = self.ranges[transform.index]
        least = max(begin - offset, read.not_before or BEGINNING)
        return least, min(min(end, last) - offset, END_OF_TIME if read.not_after is None else read.not_after)


@dataclass(frozen=True, slots=True)
class Past:
    """The past of a derivation.

    Attributes:
        parts: its parts in order, at least one.
        unknown: `upper` of the output below which the first definition is assumed; `BEGINNING` for a complete record.
    """

    parts: tuple[Part, ...]
    unknown: int


def past_of(store: Readable, present: DerivationSpec) -> Past:
    """Return the past of a derivation.

    Args:
        store: the data folder.
        present: the derivation as the catalog defines it now.

    Raises:
        UsageError: a former definition cannot be restored.
    """
    recorded = store.past(present.name)
    if not recorded:
        everything = {item.index: (BEGINNING, END_OF_TIME) for item in present.inputs}
        upper = store.upper(present.name)
        return Past((Part(0, present, True, BEGINNING, upper, everything),), upper)
    parts = tuple(_restored(recorded, present))
    first = parts[0]
    if first.clamp == BEGINNING:
        return Past(parts, BEGINNING)
    before = {index: (BEGINNING, begin) for index, (begin, _) in first.ranges.items()}
    return Past((Part(first.number - 1, first.spec, True, BEGINNING, first.clamp, before), *parts), first.clamp)


def _restored(recorded: list[PastPart], present: DerivationSpec) -> Iterator[Part]:
    specs: dict[str, DerivationSpec] = {}
    for part in recorded:
        spec = specs.get(part.definition) or restored(part.definition, present)
        if spec is None:
            raise UsageError(
                f"documents of '{present.name}' from {format_rfc3339(part.clamp)} on were derived under another"
                " definition, which cannot be restored: its connector stores no configurations, or its salt differs",
                hint=f"restore the former definition, or start over: flowctl reset --task {present.name}",
            )
        specs[part.definition] = spec
        ranges = {}
        for item in spec.inputs:
            begin = part.begins.get(item.state_key, BEGINNING)
            ranges[item.index] = (begin, max(begin, part.ends.get(item.state_key, begin)))
        yield Part(part.number, spec, part.is_regular, part.clamp, part.upper, ranges)
