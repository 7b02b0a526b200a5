"""Failpoints: places at which a test can kill the process, or pause it as on an overloaded machine.

Two failpoints surround every write that must be atomic with another write. `FLOW_FAILPOINT=name` kills the process
where that name is reached, `name:3` where it is reached for the third time, and `name:3:pause` stops the process there
until it receives SIGCONT. Spark's workers inherit the variable.
"""

from __future__ import annotations

import os
import signal

FAILPOINTS = frozenset(
    {
        "backup.begun",
        "backup.completed",
        "backup.completing",
        "backup.metadata",
        "backup.object",
        "backup.segment",
        "backup.state",
        "chain.collected",
        "chain.fetched",
        "chain.put",
        "chain.putting",
        "compaction.advanced",
        "compaction.folded",
        "compaction.replaced",
        "compaction.spilled",
        "compaction.written",
        "dataflow.committed",
        "dataflow.committing",
        "dataflow.held",
        "epoch.published",
        "epoch.written",
        "hydration.completed",
        "hydration.completing",
        "hydration.loaded",
        "hydration.staged",
        "materialize.committed",
        "materialize.committing",
        "metadata.committed",
        "metadata.committing",
        "move.activated",
        "move.copied",
        "move.filled",
        "move.marked",
        "move.switched",
        "move.table",
        "quarantine.retried",
        "quarantine.retrying",
        "refill.applied",
        "refill.completed",
        "refill.completing",
        "reset.committed",
        "reset.committing",
        "reset.removed",
        "restore.begun",
        "restore.completed",
        "restore.completing",
        "restore.file",
        "segment.closed",
        "segment.closing",
        "segment.synced",
        "shadow.dropped",
        "shadow.emptied",
        "split.committed",
        "split.copied",
        "state.committed",
        "state.committing",
        "state.discarded",
        "state.discarding",
        "state.folded",
        "state.folding",
        "state.forgotten",
        "state.linked",
        "state.removing",
        "swap.applied",
        "swap.committed",
        "swap.committing",
        "switch.removed",
        "switch.written",
        "upgrade.fenced",
        "upgrade.removing",
    }
)
"""Names of all failpoints."""

_name = ""
_left = 0
_signal = signal.SIGKILL


def arm(setting: str) -> None:
    """Apply a setting of `FLOW_FAILPOINT` to this process, from now on."""
    global _name, _left, _signal  # noqa: PLW0603 (they count for the whole process)
    _name, times, what, *_ = [*setting.split(":"), "", ""]
    _left = int(times or 1)
    _signal = signal.SIGSTOP if what == "pause" else signal.SIGKILL


arm(os.environ.get("FLOW_FAILPOINT", ""))


def reach(name: str) -> None:
    """Pass a failpoint: kill or stop this process if the setting names the failpoint."""
    global _left  # noqa: PLW0603 (it counts for the whole process)
    assert name in FAILPOINTS
    if name == _name:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), _signal)
