"""Checking: everything that is wrong with a catalog, its code included, in one run."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

from derive.catalog.build import Build, build
from derive.errors import CatalogError, Issue
from derive.lambda_sql.shuffle import check_shuffles
from derive.protocol.installed import find_authoring
from derive.protocol.specs import CatalogSpec, DerivationSpec


def check(spec: CatalogSpec) -> list[Issue]:
    """Everything wrong with the lambdas, migrations and modules of a catalog; disabled derivations are left alone."""
    return [issue for issue in _check_code(spec.derivations.values()) if not issue.is_note]


def require_sound(spec: CatalogSpec, tasks: Collection[str] | None = None) -> None:
    """Make sure that the code of a catalog is right before it runs.

    Args:
        spec: the catalog.
        tasks: names of the derivations that run; None for all.

    Raises:
        CatalogError: with everything that is wrong.
    """
    running = [derivation for name, derivation in spec.derivations.items() if tasks is None or name in tasks]
    issues = [issue for issue in _check_code(running) if not issue.is_note]
    if issues:
        raise CatalogError(issues)


def _check_code(derivations: Iterable[DerivationSpec]) -> list[Issue]:
    """The issues of the code of derivations, notes included."""
    by_connector: dict[str, list[DerivationSpec]] = {}
    issues: list[Issue] = []
    for derivation in derivations:
        if not derivation.disabled:
            by_connector.setdefault(derivation.connector, []).append(derivation)
            issues += check_shuffles(derivation)
    for name, of_connector in by_connector.items():
        issues += find_authoring(name).check(of_connector)
    return issues


def check_catalog(source: str | Path) -> Build:
    """Everything wrong with a catalog.

    The code of a derivation is checked if nothing else is wrong with that derivation, whatever is wrong with others.

    Args:
        source: path of its root file.
    """
    collects = gc.isenabled()
    gc.disable()  # what is built stays: looking for garbage in it takes a sixth of the time, and finds none
    try:
        built = build(source)
        return with_issues(built, _check_code(built.spec.derivations.values()))
    finally:
        if collects:
            gc.enable()


def with_issues(built: Build, issues: Iterable[Issue]) -> Build:
    """A build, with further issues and notes."""
    known = set(built.issues)
    new = [issue for issue in issues if issue not in known]
    return replace(
        built,
        issues=(*built.issues, *(issue for issue in new if not issue.is_note)),
        notes=(*built.notes, *(issue for issue in new if issue.is_note)),
    )
