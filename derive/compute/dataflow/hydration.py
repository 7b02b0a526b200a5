"""Hydration of a large dataflow, or of its inputs after a restart, in steps that do not delay others.

First another process reads the inputs and computes rows; then the rows are copied, a batch at a time. Until the end,
the instance holds only files and tables that it removes when it is opened again: so a crash at any time changes
nothing.
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
    """The progress of a dataflow that hydrates.

    Attributes:
        identifier: identifier of the dataflow.
        stage: the stage: `waiting`, `reading` or `loading`.
        rows: number of rows read from its inputs, or copied.
    """

    identifier: GlobalId
    stage: str
    rows: int


class Hydration:
    """One hydration. There is one at a time.

    Args:
        connection: writing connection of the instance's database.
        time: time of the rows.
        inputs: inputs; the caller holds the capability to read them.
        dataflow: the dataflow to hydrate; None to hydrate only inputs.
        stage: computes rows in another process.

    Attributes:
        is_complete: whether it is complete, and its inputs can be polled.
        is_unwanted: whether it has been cancelled.
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
        """Return whether this dataflow hydrates."""
        return self.dataflow is not None and self.dataflow.identifier == identifier

    @property
    def stage(self) -> str:
        """Return the stage."""
        return "reading" if self._adoption is None else "loading"

    @property
    def rows(self) -> int:
        """Return the number of rows read, or copied."""
        return self._staging.rows if self._adoption is None else self._adoption.loaded

    def step(self) -> bool:
        """Advance by a batch; return whether anything happened.

        Raises:
            FlowError: the dataflow cannot start.
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
        """Cancel the hydration."""
        self._staging.stop()
        if self._adoption is not None:
            self._adoption.cancel()
        clear(self._connection)


def clear(connection: apsw.Connection) -> Path:
    """Remove the files of a hydration; return the folder, which does not exist then."""
    folder = folder_of(connection) / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def operators_of(plan: Plan) -> int:
    """Return an upper bound of the number of a plan's operators."""
    return 1 + sum(map(operators_of, inputs_of(plan)))


def sources_of(plan: Plan) -> dict[GlobalId, tuple[int, ...] | None]:
    """Return the sources of a plan, with the columns read of each; None for all."""
    read: dict[GlobalId, tuple[int, ...] | None] = {}
    if isinstance(plan, Source):
        read[plan.id] = plan.columns
    for source in inputs_of(plan):
        for identifier, columns in sources_of(source).items():
            known = read.get(identifier, ())
            read[identifier] = None if known is None or columns is None else (*known, *columns)
    return read
