"""Shadows of one data folder: derivations that run beside the live derivations, until a swap or a drop."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from derive.errors import FencedError, FlowError, UsageError
from derive.failpoint import reach
from derive.protocol.collection import owner_of_version
from derive.protocol.definition_text import Definition
from derive.storage.capability.table import epochs_of, release_expired, require_epochs
from derive.storage.history import Garbage
from derive.storage.metadata.collection import delete_collection, frontiers_of
from derive.storage.metadata.database import Metadata
from derive.storage.metadata.quarantine import internal_collections
from derive.storage.metadata.swap import (
    BindingShadow,
    Meeting,
    Shadow,
    begin_binding_shadow,
    begin_shadows,
    behind,
    drop_binding_shadow,
    drop_shadows,
    find_meeting,
    hold_binding_shadows,
    hold_shadows,
    note_shadow_error,
    read_binding_shadows,
    read_shadows,
    swap_binding_shadow,
    swap_shadows,
)
from derive.storage.metadata.tasks import folder_of_task
from derive.storage.metadata.versions import readable_names


class Shadows:
    """Shadows of one data folder; all of them belong to one group.

    Args:
        metadata: metadata database.
        garbage: garbage collector of files.
    """

    def __init__(self, metadata: Metadata, garbage: Garbage) -> None:
        self._metadata, self._garbage = metadata, garbage

    def members(self) -> list[Shadow]:
        """Return the members of the present group, by name; none if there is no shadow."""
        with self._metadata.snapshot() as db:
            return read_shadows(db)

    def begin(
        self,
        definitions: Mapping[str, Definition],
        past: Mapping[str, str | None],
        former: Mapping[str, str],
        *,
        is_held: bool,
    ) -> list[Shadow]:
        """Begin shadows of a group, or continue them if they run the same definitions; new shadows fence the members.

        Args:
            definitions: definition that each member's shadow runs, by the name of the derivation.
            past: text of the last definition that each member has run when the group was found; None without one.
            former: JSON of the definition of each live collection, under which the collection is read from now on.
            is_held: whether the swap waits for a person.

        Raises:
            FencedError: another process has applied an edit of a member, or has reset it.
            UsageError: the data folder has shadows of other definitions.
        """
        with self._metadata.transaction(wakes=True) as db:
            shadows = read_shadows(db)
            if not shadows:
                begin_shadows(db, definitions, past, former, is_held=is_held)
            elif {shadow.task: shadow.definition for shadow in shadows} != {
                name: definition.digest for name, definition in definitions.items()
            }:
                raise other_edit()
            else:
                hold_shadows(db, is_held=is_held)
            return read_shadows(db)

    def let_swap(self) -> list[Shadow]:
        """Let all shadows swap as soon as they are ready; return the members of the present group."""
        with self._metadata.transaction(wakes=True) as db:
            hold_shadows(db, is_held=False)
            hold_binding_shadows(db, is_held=False)
            return read_shadows(db)

    def bindings(self) -> list[BindingShadow]:
        """Return the shadows of bindings, by materialization."""
        with self._metadata.snapshot() as db:
            return read_binding_shadows(db)

    def begin_bindings(self, shadows: Collection[BindingShadow], epochs: Mapping[str, int] | None = None) -> None:
        """Begin shadows of bindings, or continue shadows, in one commit.

        Args:
            shadows: the shadows.
            epochs: epochs that the materializations of new shadows had before these were chosen, by name; None to
                continue shadows.

        Raises:
            FencedError: a run or a reset of a materialization has begun meanwhile.
            UsageError: another process has ended a shadow meanwhile, or has begun one of another definition.
        """
        with self._metadata.transaction(wakes=True) as db:
            require_epochs(db, epochs or {})
            present = {shadow.task: shadow.definition for shadow in read_binding_shadows(db)}
            for shadow in shadows:
                unknown = None if epochs is None else shadow.definition
                if present.get(shadow.task, unknown) != shadow.definition:
                    raise UsageError(
                        f"another process has ended the shadow of '{shadow.task}', or has begun another one",
                        hint="begin a shadow again: flowctl run --shadow",
                    )
            for shadow in shadows:
                begin_binding_shadow(db, shadow, is_new=epochs is not None)

    def note_error(self, task: str, error: FlowError | None) -> None:
        """Record the error that stopped the shadows of a materialization's bindings; None if they continue."""
        with self._metadata.transaction() as db:
            note_shadow_error(db, task, error)

    def behind(self, shadow: BindingShadow) -> Collection[str]:
        """Return the state keys of shadows of bindings that have not reached their live bindings."""
        with self._metadata.snapshot() as db:
            return behind(db, shadow)

    def swap_bindings(self, task: str) -> bool:
        """Decide that the shadows of a materialization replace the rows; return false if they are not ready."""
        with self._metadata.transaction(wakes=True) as db:
            return swap_binding_shadow(db, task)

    def drop_bindings(self, shadow: BindingShadow) -> None:
        """Drop the shadows of a materialization, whose tables the caller has dropped."""
        with self._metadata.transaction(wakes=True) as db:
            release_expired(db)
            drop_binding_shadow(db, shadow)
        reach("shadow.dropped")

    def drop(self) -> dict[str, int]:
        """Drop the present group; return the epochs of the shadows by name, whose files the caller removes."""
        with self._metadata.transaction(wakes=True) as db:
            release_expired(db)
            epochs = epochs_of(db, drop_shadows(db))
        reach("shadow.dropped")
        return epochs

    def meeting(self) -> Meeting | None:
        """Return the progress of the members of the present group; None without a shadow."""
        with self._metadata.snapshot() as db:
            shadows = read_shadows(db)
            return find_meeting(db, shadows) if shadows else None

    def swap(
        self,
        definitions: Mapping[str, Definition],
        restarts: Mapping[str, Collection[str]],
        epochs: Mapping[str, int],
        resets: Mapping[str, str],
    ) -> int | None:
        """Replace the live derivations of the present group by their shadows, in one commit, and fence both.

        Args:
            definitions: definition that each member's shadow has run, by the name of the derivation.
            restarts: bindings that start over because they read the group, as state keys by materialization.
            epochs: epochs of the catalog's materializations before `restarts` was chosen; 0 if one has never run.
            resets: JSON of the reset of each of these materializations, by name.

        Returns:
            The timestamp of the swap; None if the group is not ready or has changed, or if a run or a reset of a
            materialization has begun.
        """
        with self._metadata.transaction(wakes=True) as db:
            release_expired(db)
            try:
                require_epochs(db, epochs)
            except FencedError:
                return None
            return swap_shadows(db, definitions, restarts, resets)

    def homes(self, task: str) -> set[str]:
        """Return the names of tasks whose folders have the state of a derivation or of a present shadow."""
        with self._metadata.snapshot() as db:
            folder = folder_of_task(db, task)
            return {shadow.name for shadow in read_shadows(db)} | ({folder} if folder else set())

    def leftovers(self, task: str) -> list[str]:
        """Return the names of a derivation's swapped or dropped shadows whose collections are still to be removed."""
        with self._metadata.snapshot() as db:
            used = {shadow.name for shadow in read_shadows(db)} | set(readable_names(db, task))
            rows: list[Any] = db.execute(  # "A" is the character after "@"
                "SELECT name FROM collection WHERE name > ? AND name < ?", (f"{task}@", f"{task}A")
            ).fetchall()
        return [name for (name,) in rows if owner_of_version(name) == task and name not in used]

    def settle(self, name: str, epoch: tuple[str, int]) -> None:
        """Remove the collection of a shadow that has been swapped or dropped, with its uncommitted files.

        A collection that is in use by a shadow stays.

        Args:
            name: name of the shadow.
            epoch: a task, and its epoch in which the caller has found that the shadow was swapped or dropped.

        Raises:
            FencedError: the task has another epoch.
        """
        with self._metadata.snapshot() as db:
            names = internal_collections(db, name)
            if frontiers_of(db, name) is not None:
                names.append(name)  # last, because `leftovers` finds only this one
        for collection in names:
            if self._is_used(name):
                return
            self._garbage.collect_uncommitted(collection, epoch)
            with self._metadata.transaction() as db:
                require_epochs(db, dict([epoch]))
                if not any(shadow.name == name for shadow in read_shadows(db)):
                    delete_collection(db, collection)

    def _is_used(self, name: str) -> bool:
        """Return whether there is a shadow with a name."""
        return any(shadow.name == name for shadow in self.members())


def other_edit() -> UsageError:
    """Return the error of shadows whose definitions differ from those of the edited derivations."""
    return UsageError(
        "the catalog was edited since the shadow began, or a live derivation was reset, so the shadow is outdated",
        hint="undo the later edit; or drop the shadow (flowctl shadow drop), and begin another one",
    )
