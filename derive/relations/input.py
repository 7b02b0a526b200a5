"""Collections of any kind as inputs of dataflows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from derive.relations.columns import Source
from derive.relations.tables.input import TableInput
from derive.storage.roles import Readable
from derive.storage.table import Table

if TYPE_CHECKING:
    from derive.relations.reduced import ReducedInput


def relation_input(store: Readable, source: Source, as_of: int) -> ReducedInput | TableInput:
    """Return a collection from a time on, as an input that the dataflow closes.

    Args:
        store: the data folder.
        source: the collection.
        as_of: timestamp, at or above its `since` and below its `upper`.

    Raises:
        UsageError: nothing is stored under the collection's name.
        FrontierError: the contents at that time are compacted.
    """
    if isinstance(source, Table):
        return TableInput(store, source, as_of)
    from derive.relations.reduced import ReducedInput

    return ReducedInput(store, source, as_of)
