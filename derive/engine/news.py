"""News: whether a run that goes on may have something to do, so that one that is idle costs next to nothing.

To look for work is to seal the sources, and then to say of each derivation how far time has come: commits that wait for
the disk, ten times a second if nobody asked before whether there can be any. There can when another process has
committed something, and when the tick of a document that waits has ended. Otherwise a look now and then is enough, and
tells readers that nothing has happened.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from derive.storage.changes import Mark
from derive.storage.roles import Sealable
from derive.time.frontier import tick_end

IDLE = 5_000_000
"""How often time moves where nothing else does, microseconds."""


REST = 100_000
"""How long a run rests after a look at least, whatever others commit meanwhile, microseconds."""


class News:
    """What there was to do at the last look, and what has happened since.

    Args:
        store: where it happens.
        ticks: lengths of the ticks of all derivations, microseconds.
    """

    def __init__(self, store: Sealable, ticks: Iterable[int]) -> None:
        self._store = store
        self._tick = min(ticks, default=0)
        self._due: dict[Collection[str], int] = {}
        self._looked: int | None = None
        self._mark = Mark(0, 0)
        self._now = 0

    def look(self) -> None:
        """Begin to look: what other processes commit from here on is news."""
        self._mark = self._store.changes.mark()
        _, self._looked = self._store.timeline.elapsed()

    def sealed(self, now: int) -> None:
        """Note up to when the sources are sealed."""
        self._now = now

    def rest(self, cycle: Collection[str], due: int | None) -> None:
        """Note that a cycle has nothing to do now.

        Args:
            cycle: names of its derivations.
            due: the end of the first tick in which a document waits for it; None if none waits.
        """
        if due is None:
            self._due.pop(cycle, None)
        else:
            self._due[cycle] = due

    def is_any(self) -> bool:
        """Whether there may be something to do since the last look."""
        _, elapsed = self._store.timeline.elapsed()
        changed = self._store.changes.mark().others != self._mark.others
        if self._looked is None or elapsed - self._looked >= IDLE or changed:
            return True
        due = min(list(self._due.values()), default=None)
        if due is None:
            return False
        # What was due already waits for another derivation, which goes on at the end of a tick.
        return self._store.timeline.present() >= (due if due > self._now else tick_end(self._now, self._tick))

    def wait(self, seconds: float) -> None:
        """Wait for so long, or until another process commits something, but not less than `REST` after a look.

        Two runs on one data folder would else wake one another without an end, as a look is a commit.
        """
        _, elapsed = self._store.timeline.elapsed()
        rest = REST - (elapsed - self._looked) if self._looked is not None else 0
        self._store.changes.wait(self._mark, seconds, own=False, least=max(0, rest) / 1e6)
