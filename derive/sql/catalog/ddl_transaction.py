"""Drafts: the names of a DDL transaction before COMMIT."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from derive.algebra.relation import GlobalId
from derive.errors import SqlError
from derive.sql.catalog.items import PROVISIONAL, Change, Item, is_provisional
from derive.sql.catalog.snapshot import Objects

_IDS = itertools.count(PROVISIONAL)


def provisional_id() -> GlobalId:
    """Return a new provisional identifier, above all earlier ones, so the oldest items come first."""
    return next(_IDS)


@dataclass(frozen=True, slots=True)
class DdlTransaction:
    """The names of a DDL transaction.

    Attributes:
        base: the names when the transaction began to define items.
        objects: the names with the transaction's changes.
    """

    base: Objects
    objects: Objects

    @property
    def alters(self) -> bool:
        """Return whether the transaction changes the columns of a table."""
        return any(item.alters is not None for item in self.objects.items.values())

    def changed(
        self,
        *,
        added: Iterable[Item] = (),
        removed: Iterable[GlobalId] = (),
        renamed: Mapping[GlobalId, str] | None = None,
    ) -> DdlTransaction:
        """Return this transaction with one more change.

        Args:
            added: new items with provisional identifiers.
            removed: identifiers of dropped items.
            renamed: new names by identifier.
        """
        new_names = renamed or {}
        items = {item.id: replace(item, name=new_names.get(item.id, item.name)) for item in self.objects.items.values()}
        for identifier in removed:
            del items[identifier]
        items |= {item.id: item for item in added}
        return DdlTransaction(self.base, self.objects.with_items(items.values()))

    def change(self, now: Objects) -> Change:
        """Return the change of the catalog; other sessions may have changed the catalog meanwhile.

        Args:
            now: the current names.

        Raises:
            SqlError: 42P07 if another session has taken a name; 40001 if another session has changed an item that the
                change depends on.
        """
        before, after = self.base.items, self.objects.items
        added = tuple(item for item in after.values() if is_provisional(item.id))
        removed = tuple(identifier for identifier in before if identifier not in after)
        renamed = {
            identifier: item.name
            for identifier, item in after.items()
            if identifier in before and before[identifier].name != item.name
        }
        change = Change(added, removed, renamed)
        if now.version != self.base.version:
            self._check(change, now)
        return change

    def _check(self, change: Change, now: Objects) -> None:
        """Check that a change does not conflict with changes of other sessions."""
        needed = {*change.removed, *change.renamed}.union(*(item.uses for item in change.added))
        for identifier in needed:
            if not is_provisional(identifier) and identifier not in now.items and identifier not in now.collections:
                raise _conflict("dropped something")
        for identifier in change.renamed:
            if now.items[identifier].name != self.base.items[identifier].name:
                raise _conflict(f'renamed "{self.base.items[identifier].name}"')
        for user in now.users(change.removed):
            if user.id not in change.removed:
                raise _conflict(f'defined "{user.name}", which depends on what is dropped here')
        leaving = {*change.removed, *change.renamed}
        taken = {item.name for item in now.items.values() if item.id not in leaving}
        for name in (*change.renamed.values(), *(item.name for item in change.added)):
            if name in taken:
                hint = "Another session has committed it meanwhile."
                raise SqlError("42P07", f'relation "{name}" already exists', hint=hint)


def _conflict(what: str) -> SqlError:
    message = f"could not serialize access: another session has {what}"
    return SqlError("40001", message, hint="run the transaction again")
