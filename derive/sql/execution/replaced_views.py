"""CREATE OR REPLACE VIEW and ALTER VIEW … RENAME COLUMN: a view in place of another one, and the views that read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from derive.errors import SqlError, suggest
from derive.sql.catalog.items import Item, with_names
from derive.sql.catalog.renamed_columns import with_earlier_names
from derive.sql.catalog.snapshot import Objects, provisional_id
from derive.sql.parser.statement import ObjectKind, RenameColumn
from derive.sql.planner.interfaces import NamedColumn

CASCADE = "Use DROP … CASCADE to drop them too."


def depended(kind: str, item: Item, users: Sequence[Item], *, verb: str = "drop", hint: str = CASCADE) -> SqlError:
    """Return the error of a DROP or of a replacement of an item that other items depend on."""
    depending = ", ".join(f"{user.kind.value} {user.name}" for user in users)
    return SqlError(
        "2BP01",
        f"cannot {verb} {kind} {item.name} because others depend on it",
        detail=f"These depend on it: {depending}.",
        hint=hint,
    )


def replaced_view(objects: Objects, former: Item, view: Item) -> list[Item]:
    """Return a view in place of another one, and the dependents that read the new one from now on.

    Args:
        objects: the names before.
        former: the replaced view.
        view: the new view.

    Raises:
        SqlError: 42P16, the new view lacks a column of the former one, or its name or type differs; 42P17, the new view
            reads the former one; 2BP01, the server maintains rows of the former one.
    """
    users = objects.users([former.id])
    _require_same_columns(former.columns, view.columns)
    if former.id in view.uses or any(user.id in view.uses for user in users):
        message = f'infinite recursion detected in rules for relation "{former.name}"'
        hint = "Create a view of another name, or use WITH RECURSIVE."
        raise SqlError("42P17", message, hint=hint)
    _require_unmaintained(former, users, "replace")
    names = tuple(column.name for column in former.columns)
    followed = []
    for user in users:
        own = [name for name, identifier in user.bindings.items() if identifier == former.id]
        if own:
            read = {**user.read, **{name: user.read.get(name, names) for name in own}}
            followed.append(replace(user.rebound({former.id: view.id}), read=read))
    return [view, *followed]


def with_renamed_column(objects: Objects, former: Item, action: RenameColumn) -> list[Item]:
    """Return a view with another name of a column, and the dependents, which keep the meaning of their texts.

    Args:
        objects: the names before.
        former: the view before.
        action: the column and its new name.

    Raises:
        SqlError: 42703, the column does not exist; 42701, another one has the new name; 2BP01, the server maintains
            rows of the view, or a dependent takes the view as a row.
    """
    names = [column.name for column in former.columns]
    if action.name not in names:
        message = f'column "{action.name}" does not exist'
        nearest = suggest(action.name, names)
        hint = f'Did you mean "{nearest}"?' if nearest else None
        raise SqlError("42703", message, offset=action.offset, hint=hint)
    if action.new_name in names:
        message = f'column "{action.new_name}" of relation "{former.name}" already exists'
        raise SqlError("42701", message, offset=action.new_offset)
    users = objects.users([former.id])
    _require_unmaintained(former, users, "change")
    columns = tuple(replace(one, name=action.new_name) if one.name == action.name else one for one in former.columns)
    assert former.definition is not None
    definition = with_names(former.definition, former.name, [column.name for column in columns])
    view = replace(former, id=provisional_id(), columns=columns, definition=definition, origin={})
    followed = []
    for user in users:
        if former.id in user.uses:
            reader = with_earlier_names(user, former.id, names, {action.name: action.new_name})
            if reader is None:
                hint = "Drop the dependents, and create them again after the change."
                raise depended("view", former, [user], verb="change", hint=hint)
            followed.append(reader.rebound({former.id: view.id}))
    return [view, *followed]


def _require_unmaintained(former: Item, users: Sequence[Item], verb: str) -> None:
    """Check that the server maintains no rows of a view (2BP01)."""
    maintained = [user for user in users if user.kind in {ObjectKind.INDEX, ObjectKind.MATERIALIZED_VIEW}]
    if maintained:
        hint = "Use DROP … CASCADE, and create the dependents again."
        raise depended("view", former, maintained, verb=verb, hint=hint)


def _require_same_columns(before: Sequence[NamedColumn], after: Sequence[NamedColumn]) -> None:
    """Check that a view begins with the columns of the view that it replaces."""
    if len(after) < len(before):
        raise SqlError("42P16", "cannot drop columns from view", hint="Use DROP VIEW, and create it again.")
    for old, new in zip(before, after, strict=False):
        if old.name != new.name:
            message = f'cannot change name of view column "{old.name}" to "{new.name}"'
            hint = f'Write the expression AS "{old.name}", or drop the view first.'
            raise SqlError("42P16", message, hint=hint)
        if _shown_type(old) != _shown_type(new):
            types = [_shown_type(column) for column in (old, new)]
            message = f'cannot change data type of view column "{old.name}" from {types[0]} to {types[1]}'
            raise SqlError("42P16", message, hint="Add a cast, or drop the view first.")


def _shown_type(column: NamedColumn) -> str:
    """Return the type of a column with the modifier that PostgreSQL knows."""
    modifier = column.modifier
    return modifier.text if modifier is not None and modifier.size else column.type.value
