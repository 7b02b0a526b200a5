"""An executor that stands for Spark in tests: what it carries out is done by a process of its own, which starts slowly."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field

import orjson
from patience import PATIENCE_SECONDS
from typing_extensions import override

from derive.engine.executor import InProcessExecutor
from derive.errors import TaskError
from derive.materialize.stages import AnyPlan
from derive.shard.progress import Message, Progress


@dataclass
class Elsewhere(InProcessExecutor):
    """Carries transactions out in a fork of this process; its attempts are numbered from 0, as Spark's are."""

    starting: threading.Event = field(default_factory=threading.Event)
    may_start: threading.Event = field(default_factory=threading.Event)
    done: list[int] = field(default_factory=list)  # documents of each transaction
    error: Exception | None = None

    def warm_up(self) -> None:
        self.starting.set()
        assert self.may_start.wait(PATIENCE_SECONDS)
        if self.error:
            raise self.error

    @override
    def execute(self, plan: AnyPlan, progress: Progress) -> list[Message]:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            messages = super().execute(plan, lambda _: None)
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(orjson.dumps([message.to_json() for message in messages]))
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            messages = [Message.from_json(text) for text in orjson.loads(pipe.read())]
        os.waitpid(child, 0)
        self.done.append(sum(message.documents_in for message in messages))
        return messages

    @override
    def cancel(self) -> None:
        super().cancel()
        self._give_up()

    @override
    def close(self) -> None:
        self._give_up()

    def _give_up(self) -> None:
        """End a start, if one is under way."""
        if not self.may_start.is_set():
            self.error = TaskError("the start of Spark was ended")
            self.may_start.set()
