"""Collections as inputs of dataflows, of whatever kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from derive.relations.columns import Source
from derive.relations.tables.input import TableInput
from derive.storage.roles import Readable
from derive.storage.table import Table

if TYPE_CHECKING:
    from derive.relations.reduced import ReducedInput


def relation_input(store: Readable, source: Source, as_of: int) -> ReducedInput | TableInput:
    """A collection from a time on, for a dataflow, which closes it when it needs it no more.

    Args:
        store: holds the collection.
        source: the collection.
        as_of: clock, at or above its `since` and below its `upper`.

    Raises:
        UsageError: nothing is stored under the collection's name.
        FrontierError: the contents at that time are no longer known.
    """
    if isinstance(source, Table):
        return TableInput(store, source, as_of)
    from derive.relations.reduced import ReducedInput

    return ReducedInput(store, source, as_of)
