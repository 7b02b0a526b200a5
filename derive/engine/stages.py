"""Stages of an edit: what can be applied at once, while tasks that it changes are in the middle of transactions.

Such a task stays as it was until its transaction has ended. So do those that are on a cycle with it, as the run has it
or as the edited catalog does, and those that would meet what it still writes: readers of a collection that the edit
defines otherwise, and materializations into the same endpoint. Everything else is defined as edited from now on.
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
    """Names of the tasks that stay as they are until those that are busy have ended their transactions.

    Args:
        present: the catalog that the tasks are at work by.
        edited: what it was edited to.
        busy: names of tasks that are in the middle of transactions, and that the edit changes.
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
    """The edited catalog, but with some tasks, and what they derive, as they are now; without those that are new."""
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
    """Entries as edited, but for those of names that wait."""
    others = {name: spec for name, spec in edited.items() if name not in waiting}
    return others | {name: spec for name, spec in present.items() if name in waiting}


def _readers(present: CatalogSpec, edited: CatalogSpec, waiting: Collection[str]) -> set[str]:
    """Tasks that read a collection which one that waits still writes, and which the edit defines otherwise."""
    changed = {
        name
        for name in waiting
        if name in present.derivations
        and name in edited.collections
        and not is_same_definition(present.derivations[name].collection, edited.collections[name])
    }
    return {name for name, spec in edited.tasks.items() if not changed.isdisjoint(spec.sources)}


def _sharing(present: CatalogSpec, edited: CatalogSpec, waiting: Collection[str]) -> set[str]:
    """Materializations into an endpoint into which one that waits still stores."""
    endpoints = [spec.endpoint for name, spec in present.materializations.items() if name in waiting]
    return {
        name
        for name, spec in edited.materializations.items()
        if any(is_same_definition(spec.endpoint, endpoint) for endpoint in endpoints)
    }
