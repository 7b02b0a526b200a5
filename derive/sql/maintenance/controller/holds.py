"""What a controller needs of Storage: nothing is forgotten while a replica may still be told to begin with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from derive.algebra.relation import GlobalId
from derive.compute.protocol.messages import Dataflow


class Holds(Protocol):
    """Rights to read what dataflows are made of, so that each replica can begin with them."""

    def hold(self, dataflows: Sequence[Dataflow]) -> None:
        """Hold the imports of dataflows from their `as_of` on, and no longer from earlier times.

        They are not forgotten from when it returns until they are released, and by no restart.

        Raises:
            FrontierError: they are forgotten already.
        """

    def release(self, identifier: GlobalId) -> None:
        """Give back what is held for a dataflow."""
