"""Coverage of lambdas: the transforms and the branches that documents have reached in the tests of a catalog."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import apsw

from derive.position import Position
from derive.protocol.derive import DeriveSession, Log, MeasuresBranches, ReadBatch, RevertibleSession
from derive.protocol.entry_points import find_runtime
from derive.protocol.specs import CatalogSpec, DerivationSpec, Document
from derive.shard.session import Opened


@dataclass(frozen=True, slots=True)
class Miss:
    """A transform or a branch that no document has reached.

    Attributes:
        transform: name of the transform.
        position: position in the catalog.
        what: description, such as `WHERE is never true`.
    """

    transform: str
    position: Position
    what: str


@dataclass(frozen=True, slots=True)
class DerivationCoverage:
    """Coverage of one derivation.

    Attributes:
        derivation: name of the derivation.
        transforms: number of transforms.
        branches: number of measured branches of all transforms.
        reached_transforms: number of transforms that have read a document.
        reached_branches: number of branches that a document has reached.
        misses: what no document has reached, in the order of the catalog; without the branches of a transform that was
            not reached.
    """

    derivation: str
    transforms: int
    branches: int
    reached_transforms: int
    reached_branches: int
    misses: tuple[Miss, ...]

    @property
    def total(self) -> int:
        """Return the number of transforms and branches."""
        return self.transforms + self.branches

    @property
    def reached(self) -> int:
        """Return the number of transforms and branches that documents have reached."""
        return self.reached_transforms + self.reached_branches


class Coverage:
    """The transforms and branches that documents have reached, noted by the observer of `observing`."""

    def __init__(self) -> None:
        self._transforms: defaultdict[str, set[int]] = defaultdict(set)
        self._branches: defaultdict[str, set[int]] = defaultdict(set)

    def __call__(self, spec: DerivationSpec, database: apsw.Connection, log: Log, opened: Opened) -> DeriveSession:
        """Open a session that reports what its documents reach."""
        runtime, reached = find_runtime(spec.connector), self._transforms[spec.name]
        if isinstance(runtime, MeasuresBranches):
            session = runtime.open_measured(spec, database, log, self._branches[spec.name].add)
        else:
            session = opened(spec, database, log)
        if isinstance(session, RevertibleSession):
            measured = _RevertibleMeasured(session, reached)
            measured.revertible = session
            return measured
        return _MeasuredSession(session, reached)

    def of(self, catalog: CatalogSpec) -> Iterator[DerivationCoverage]:
        """Yield the coverage of each derivation of a catalog."""
        for derivation in catalog.derivations.values():
            yield self._of(derivation)

    def _of(self, spec: DerivationSpec) -> DerivationCoverage:
        runtime = find_runtime(spec.connector)
        branches = runtime.branches(spec) if isinstance(runtime, MeasuresBranches) else ()
        read, reached = self._transforms[spec.name], self._branches[spec.name]
        missed = [transform for transform in spec.transforms if transform.index not in read]
        misses = [Miss(item.name, item.position, "reads no document") for item in missed]
        misses += [
            Miss(spec.transforms[branch.transform].name, branch.position, branch.what)
            for branch in branches
            if branch.number not in reached and branch.transform in read
        ]
        return DerivationCoverage(
            derivation=spec.name,
            transforms=len(spec.transforms),
            branches=len(branches),
            reached_transforms=len(spec.transforms) - len(missed),
            reached_branches=sum(branch.number in reached for branch in branches),
            misses=tuple(sorted(misses, key=lambda miss: miss.position)),
        )


class _MeasuredSession:
    """A session that wraps another session, and notes the transforms that read documents.

    Args:
        session: the other session.
        reached: receives the indexes of the transforms.
    """

    def __init__(self, session: DeriveSession, reached: set[int]) -> None:
        self._session, self._reached = session, reached

    @property
    def flushes(self) -> bool:
        """Return true if batches must include the end of each tick with documents."""
        return self._session.flushes

    def invoke(self, batch: ReadBatch) -> Iterator[tuple[int, Document]]:
        """Run the lambdas over a batch."""
        self._reached.update(batch.transforms)
        return self._session.invoke(batch)

    def prepare_commit(self) -> None:
        """Write the connector's state."""
        self._session.prepare_commit()

    def close(self) -> None:
        """Release all resources."""
        self._session.close()


class _RevertibleMeasured(_MeasuredSession):
    """A measured session around a session that can undo the work of documents.

    Attributes:
        revertible: the other session.
    """

    revertible: RevertibleSession

    def mark(self) -> None:
        """Remember the present state."""
        self.revertible.mark()

    def keep(self) -> None:
        """Keep the work since the mark."""
        self.revertible.keep()

    def undo(self) -> None:
        """Return to the state at the mark; what the documents have reached stays reached."""
        self.revertible.undo()
