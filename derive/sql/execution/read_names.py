"""The names of a read: those of the plan of its statement are the names at the time of the read.

A plan finds columns by their numbers, and Storage finds their values by names. A plan of other names than those at the
time of the read would return the values of another column, or of another relation. So a statement is planned again if
definitions of another session were committed between its plan and the choice of the time. Afterwards the read keeps its
names: the rows of its time remain readable, whatever is defined meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from derive.algebra.relation import GlobalId
from derive.errors import SqlError

if TYPE_CHECKING:
    from derive.sql.execution.state import State


class OutdatedPlanError(SqlError):
    """The names have changed since a statement was planned; it has returned and written nothing yet."""


async def take_names(state: State, ids: Collection[GlobalId]) -> None:
    """Take the names of a read whose time was chosen just now; a transaction keeps the names of its first read.

    Args:
        state: state of the session.
        ids: relations that are read from Storage.

    Raises:
        OutdatedPlanError: another session has committed definitions since the statement was planned.
        SqlError: the transaction has definitions, and another session has changed a relation that it reads (40001).
    """
    coordinator = state.coordinator
    if state.kept_names is not None:
        state.names = state.present_names
        return
    if coordinator.commits.is_publishing:
        await coordinator.commits.published()
    now = coordinator.refresh()
    if state.ddl is not None:
        base = state.ddl.base.items
        if any(identifier in base and now.items.get(identifier) != base[identifier] for identifier in ids):
            message = "could not serialize access: another session has changed a relation that the transaction reads"
            raise SqlError("40001", message, hint="Run the transaction again.")
    elif state.planned is not None and state.objects.version != state.planned:
        await state.transaction.forget_read()
        message = "could not serialize access: another session has changed definitions during the statement"
        raise OutdatedPlanError("40001", message, hint="Run the statement again.")
    state.names = now
    if state.is_explicit and state.transaction.time is not None:
        state.kept_names = now


def has_current_names(state: State) -> bool:
    """Return whether the names of a read are the current ones, which rows in memory and in instances have.

    It is asked before rows are taken from there, and again when they came, as definitions may be committed meanwhile.
    """
    coordinator = state.coordinator
    return state.names.version == coordinator.objects.version and not coordinator.commits.is_publishing


async def has_same_dataflows(state: State, places: Collection[GlobalId]) -> bool:
    """Return whether dataflows have the definitions that the names of a read have, after a wait for their rows.

    Definitions of other relations, which are committed meanwhile, change no rows. A reader beside many definitions
    would otherwise wait for its rows again and again.
    """
    coordinator = state.coordinator
    await coordinator.commits.published()
    names, now = state.names, coordinator.objects
    if names.version == now.version:
        return True
    is_same = now.items.keys() >= set(places) and now.has_same_items(places, names)
    # The dataflows may still be those of other definitions in between.
    is_made = coordinator.maintained.desired.are_current(places, now)
    return is_same and is_made and names.collections == now.collections
