"""The beginning of a dataflow of many rows, or of its inputs after a restart, in steps that hold nobody up.

First another process reads and works out rows; then they are taken over, a batch at a time. Meanwhile nothing of it is
in the instance but what an instance that is opened anew removes: so a crash at any time leaves it as it was.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import apsw

from derive.algebra.relation import GlobalId
from derive.compute.dataflow.adoption import Adoption
from derive.compute.dataflow.database import folder_of
from derive.compute.dataflow.input import MovableInput
from derive.compute.dataflow.staging import FirstDataflow, Order, Stage
from derive.compute.plans.plan import Plan, Source, inputs_of
from derive.failpoint import reach

FOLDER = "hydrating"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a dataflow is that begins.

    Attributes:
        identifier: of the dataflow.
        stage: what is done: `waiting`, `reading` or `loading`.
        rows: so many were read of its inputs, or taken over.
    """

    identifier: GlobalId
    stage: str
    rows: int


class Hydration:
    """One beginning. There is one at a time.

    Args:
        connection: that writes to the instance's database.
        time: of the rows.
        inputs: what is read; whoever asks for this has the right to, and keeps it.
        dataflow: that begins; None if only its inputs do.
        stage: has rows worked out.

    Attributes:
        is_complete: whether it is done, and its inputs can go on.
        is_unwanted: whether nobody asks for it any more.
    """

    def __init__(
        self,
        connection: apsw.Connection,
        time: int,
        inputs: Mapping[GlobalId, MovableInput],
        dataflow: FirstDataflow | None,
        stage: Stage,
    ) -> None:
        self.time = time
        self.inputs = inputs
        self.dataflow = dataflow
        self._connection = connection
        self._folder = clear(connection)
        self._folder.mkdir()
        columns = sources_of(dataflow.plan) if dataflow else {}
        openers = {
            identifier: source.opener(time, columns.get(identifier, ()), self._place(identifier))
            for identifier, source in inputs.items()
        }
        self._staging = stage(Order(self._folder, time, openers, dataflow))
        self._adoption: Adoption | None = None
        self.is_complete = False
        self.is_unwanted = False

    def _place(self, identifier: GlobalId) -> Path:
        return self._folder / f"input-{identifier}"

    def begins(self, identifier: GlobalId) -> bool:
        """Whether it is this dataflow that begins."""
        return self.dataflow is not None and self.dataflow.identifier == identifier

    @property
    def stage(self) -> str:
        """What is done."""
        return "reading" if self._adoption is None else "loading"

    @property
    def rows(self) -> int:
        """So many rows were read, or taken over."""
        return self._staging.rows if self._adoption is None else self._adoption.loaded

    def step(self) -> bool:
        """Go on for a moment; whether anything happened.

        Raises:
            FlowError: the dataflow cannot begin.
        """
        if self._adoption is None:
            if not self._staging.is_over():
                return False
            reach("hydration.staged")
            if self.dataflow is None:
                self._end()
            else:
                self._adoption = Adoption(self._connection, self._folder)
            return True
        if self._adoption.load():
            reach("hydration.loaded")
            return True
        reach("hydration.completing")
        self._adoption.complete()
        reach("hydration.completed")
        self._adoption = None
        self._end()
        return True

    def _end(self) -> None:
        for identifier, source in self.inputs.items():
            source.adopt(self.time, self._place(identifier))
        clear(self._connection)
        self.is_complete = True

    def cancel(self) -> None:
        """Do not go on."""
        self._staging.stop()
        if self._adoption is not None:
            self._adoption.cancel()
        clear(self._connection)


def clear(connection: apsw.Connection) -> Path:
    """Remove what a hydration left; returns the folder, which is not there."""
    folder = folder_of(connection) / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def operators_of(plan: Plan) -> int:
    """So many operators at most carry out a plan."""
    return 1 + sum(map(operators_of, inputs_of(plan)))


def sources_of(plan: Plan) -> dict[GlobalId, tuple[int, ...] | None]:
    """Sources that a plan reads, and which columns of each; None for all."""
    read: dict[GlobalId, tuple[int, ...] | None] = {}
    if isinstance(plan, Source):
        read[plan.id] = plan.columns
    for source in inputs_of(plan):
        for identifier, columns in sources_of(source).items():
            known = read.get(identifier, ())
            read[identifier] = None if known is None or columns is None else (*known, *columns)
    return read
