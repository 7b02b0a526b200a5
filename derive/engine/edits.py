"""Edits: what has changed in a derivation under documents that it had published already.

A lambda may be edited, and most often that is meant: from then on documents are derived by the new one, and what is
there stays as the old one made it. Nothing fails by that, so nothing would tell. Therefore a task remembers a
fingerprint of each of its parts as it was last run, and every edit that has been made since its output began.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace

from derive.protocol.installed import find_runtime
from derive.protocol.specs import DerivationSpec
from derive.storage.metadata.descriptions import Edit, TaskState

_SHARED = "/"
"""What the part that is shared code begins with, before the name of the code; no transform's name does."""


def fingerprints_of(spec: DerivationSpec) -> dict[str, str]:
    """For each part of a derivation, by `state_key` or by what shared code is called, a text that an edit changes."""
    parts = {}
    for transform in spec.transforms:
        text = transform.script.text if transform.script else ""
        parts[transform.input.state_key] = f"{transform.input.source} {_hash(text)}"
    code = find_runtime(spec.connector).shared_code(spec)
    if code is not None:
        parts[f"{_SHARED}{code.name}"] = _hash(code.text)
    return parts


def edits_of(spec: DerivationSpec, state: TaskState, upper: int | None = None) -> tuple[Edit, ...]:
    """Every edit under a task's output: those that it remembers, and those that its next run will meet.

    Args:
        spec: the derivation as it is now.
        state: what is known of the task.
        upper: of its output, if it runs now: from which time on new edits are in force; None if it does not run.
    """
    if not state.transactions or not state.fingerprints:
        return ()
    now, before = fingerprints_of(spec), state.fingerprints
    names = {_name(key) for key in now}
    begun_again = {_name(key) for key in now if key not in before}
    remembered = [edit for edit in state.edits if _name(edit.part) not in begun_again]
    new = [replace(edit, at=upper) for edit in _compare(spec, now, before, names)]
    return (*remembered, *new)


def _compare(
    spec: DerivationSpec, now: Mapping[str, str], before: Mapping[str, str], names: set[str]
) -> Iterator[Edit]:
    reset = f"flowctl reset --task {spec.name}"
    gone = {part: key for key, part in before.items() if _name(key) not in names and not key.startswith(_SHARED)}
    for key, part in now.items():
        if key in before and before[key] != part:
            is_shared = key.startswith(_SHARED)
            what = f"the {key.removeprefix(_SHARED)}" if is_shared else f"the lambda of '{_name(key)}'"
            message = f"{what} was edited, and what had been published before is as the old one made it"
            yield Edit(key, message, f"to derive it again raise 'backfill', or start over: {reset}")
        elif key not in before and part in gone:
            old = gone.pop(part)
            message = f"'{_name(old)}' is called '{_name(key)}' now, and so its source is read from the start once more"
            yield Edit(key, message, f"call it '{_name(old)}' again before it runs, or start over: {reset}")
    for key in gone.values():
        message = f"'{_name(key)}' is not in the catalog any more, and what it had published stays"
        yield Edit(key, message, f"to be rid of it start over: {reset}")


def _name(key: str) -> str:
    """The transform of a `state_key`, whatever its `backfill`."""
    name, _, backfill = key.rpartition(".v")
    return name if name and backfill.isdigit() else key


def _hash(text: str) -> str:
    return hashlib.sha256(text.strip().encode()).hexdigest()[:16]
