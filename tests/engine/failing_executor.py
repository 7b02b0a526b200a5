"""An executor that fails, for tests of what a run does then."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from derive.engine.executor import InProcessExecutor
from derive.errors import DiskFullError
from derive.materialize.stages import AnyPlan
from derive.shard.progress import Message, Progress


@dataclass
class FailsFirst(InProcessExecutor):
    """Finds the disk full, a number of times."""

    times: int

    @override
    def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        if self.times:
            self.times -= 1
            raise DiskFullError("no space left on the device")
        return super().execute(plan, progress)
