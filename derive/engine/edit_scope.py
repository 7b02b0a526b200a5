"""Stages of an edit: the part that can be applied at once, while tasks that it changes are in transactions.

Such a task stays unchanged until its transaction has ended. So do the tasks on a cycle with it, in the present or the
edited catalog, and tasks that would use its output: readers of a collection that the edit redefines, and
materializations into the same endpoint. All other tasks are redefined at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TypeVar

from derive.catalog.rules.lineage import cycles
from derive.protocol.definition import is_same_definition
from derive.protocol.specs import CatalogSpec

Spec = TypeVar("Spec")


def find_waiting(present: CatalogSpec, edited: CatalogSpec, busy: Collection[str]) -> frozenset[str]:
    """Return the names of tasks that stay unchanged until the busy ones have ended their transactions.

    Args:
        present: the present catalog of the run.
        edited: the edited catalog.
        busy: names of changed tasks that are in transactions.
    """
    waiting = frozenset(busy)
    while True:
        mixed = stage(present, edited, waiting)
        grown = {
            name
            for group in (*present.cycles, *edited.cycles, *mixed.cycles)
            if not waiting.isdisjoint(group)
            for name in group
        }
        grown |= _readers(present, edited, waiting) | _sharing(present, edited, waiting)
        if waiting.issuperset(grown):
            return waiting
        waiting |= grown


def stage(present: CatalogSpec, edited: CatalogSpec, waiting: Collection[str]) -> CatalogSpec:
    """Return the edited catalog with waiting tasks and their collections as they are now, without new waiting ones."""
    if not waiting:
        return edited
    derivations = _mixed(present.derivations, edited.derivations, waiting)
    groups = cycles({name: [read.source for read in spec.inputs] for name, spec in derivations.items()})
    ordered = {name: derivations[name] for group in groups for name in group}
    return replace(
        edited,
        collections=_mixed(present.collections, edited.collections, waiting),
        derivations=ordered,
        cycles=groups,
        materializations=_mixed(present.materializations, edited.materializations, waiting),
    )


def _mixed(present: Mapping[str, Spec], edited: Mapping[str, Spec], waiting: Collection[str]) -> dict[str, Spec]:
    """Return the entries as edited, except those that wait."""
    others = {name: spec for name, spec in edited.items() if name not in waiting}
    return others | {name: spec for name, spec in present.items() if name in waiting}


def _readers(present: CatalogSpec, edited: CatalogSpec, waiting: Collection[str]) -> set[str]:
    """Return tasks that read a collection which a waiting task still writes, and which the edit redefines."""
    changed = {
        name
        for name in waiting
        if name in present.derivations
        and name in edited.collections
        and not is_same_definition(present.derivations[name].collection, edited.collections[name])
    }
    return {name for name, spec in edited.tasks.items() if not changed.isdisjoint(spec.sources)}


def _sharing(present: CatalogSpec, edited: CatalogSpec, waiting: Collection[str]) -> set[str]:
    """Return materializations into an endpoint into which a waiting one still stores."""
    endpoints = [spec.endpoint for name, spec in present.materializations.items() if name in waiting]
    return {
        name
        for name, spec in edited.materializations.items()
        if any(is_same_definition(spec.endpoint, endpoint) for endpoint in endpoints)
    }
