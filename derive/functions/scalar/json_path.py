"""Paths in JSON values, which are arrays of text: `{a,0,"b c"}`; and changes at paths."""

from __future__ import annotations

import re
from typing import TypeAlias

from derive.errors import SqlError
from derive.functions.types.jsonb import Json

Path: TypeAlias = tuple[str | None, ...]
"""Steps; None for NULL."""

_INTEGER = re.compile(r"\s*[+-]?\d{1,18}", re.ASCII)


def _steps(path: Path) -> tuple[str, ...]:
    """Return the steps of a path to change, none of which may be NULL."""
    steps: list[str] = []
    for position, step in enumerate(path, start=1):
        if step is None:
            raise SqlError("22004", f"path element at position {position} is null")
        steps.append(step)
    return tuple(steps)


def step_into(container: Json, step: str) -> str | int | None:
    """Return the key or index of a path's step in a value; None if there is none."""
    if isinstance(container, dict):
        return step
    if isinstance(container, list) and _INTEGER.fullmatch(step):
        return int(step)
    return None


def _index(step: str, position: int) -> int:
    if _INTEGER.fullmatch(step) is None or not -1 << 31 <= int(step) < 1 << 31:
        raise SqlError("22P02", f'path element at position {position} is not an integer: "{step}"')
    return int(step)


def _refuse_scalar(value: Json, what: str) -> None:
    if not isinstance(value, dict | list):
        raise SqlError("22023", f"cannot {what} in scalar" if what == "set path" else f"cannot {what} path in scalar")


def removed(value: Json, path: Path) -> Json:
    """Return a value without the part at a path.

    Raises:
        SqlError: 22023, it is a scalar; 22P02, a step into an array is no integer; 22004, a step is NULL.
    """
    _refuse_scalar(value, "delete")
    if not value:
        return value
    steps = _steps(path)
    return _removed(value, steps, 1) if steps else value


def _removed(value: Json, path: tuple[str, ...], position: int) -> Json:
    step, rest = path[0], path[1:]
    if isinstance(value, dict):
        if step not in value:
            return value
        members = {key: member for key, member in value.items() if key != step}
        return {**members, step: _removed(value[step], rest, position + 1)} if rest else members
    if not isinstance(value, list):
        return value
    index = _index(step, position)
    index += len(value) if index < 0 else 0
    if not 0 <= index < len(value):
        return value
    between = [_removed(value[index], rest, position + 1)] if rest else []
    return [*value[:index], *between, *value[index + 1 :]]


def changed(value: Json, path: Path, new: Json, *, creates: bool) -> Json:
    """Return a value with the part at a path replaced; with `creates`, the last step may be missing.

    Raises:
        SqlError: 22023, it is a scalar; 22P02, a step into an array is no integer; 22004, a step is NULL.
    """
    _refuse_scalar(value, "set path")
    steps = _steps(path)
    return _changed(value, steps, new, creates, 1) if steps else value


def _changed(value: Json, path: tuple[str, ...], new: Json, creates: bool, position: int) -> Json:
    step, rest = path[0], path[1:]
    if isinstance(value, dict):
        if rest:
            return {**value, step: _changed(value[step], rest, new, creates, position + 1)} if step in value else value
        return {**value, step: new} if creates or step in value else value
    if not isinstance(value, list):
        return value
    index = _index(step, position)
    at = index + len(value) if index < 0 else index
    if not 0 <= at < len(value):
        if rest or not creates:
            return value
        return [new, *value] if index < 0 else [*value, new]
    member = _changed(value[at], rest, new, creates, position + 1) if rest else new
    return [*value[:at], member, *value[at + 1 :]]


def inserted(value: Json, path: Path, new: Json, *, is_after: bool) -> Json:
    """Return a value with another one inserted before or after an element, or for a missing key.

    Raises:
        SqlError: 22023, it is a scalar, or the key exists; 22P02, a step into an array is no integer; 22004, a step is
            NULL.
    """
    _refuse_scalar(value, "set path")
    steps = _steps(path)
    return _inserted(value, steps, new, is_after, 1) if steps else value


def _inserted(value: Json, path: tuple[str, ...], new: Json, is_after: bool, position: int) -> Json:
    step, rest = path[0], path[1:]
    if isinstance(value, dict):
        if rest and step in value:
            return {**value, step: _inserted(value[step], rest, new, is_after, position + 1)}
        if step in value:
            hint = "Try using the function jsonb_set to replace key value."
            raise SqlError("22023", "cannot replace existing key", hint=hint)
        return value if rest else {**value, step: new}
    if not isinstance(value, list):
        return value
    index = _index(step, position)
    at = index + len(value) if index < 0 else index
    if rest and 0 <= at < len(value):
        return [*value[:at], _inserted(value[at], rest, new, is_after, position + 1), *value[at + 1 :]]
    if rest:
        return value
    at = min(max(at + is_after, 0), len(value)) if at >= 0 else 0
    return [*value[:at], new, *value[at:]]
