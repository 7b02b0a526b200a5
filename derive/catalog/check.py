"""Checks a catalog completely, including its code."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

from derive.catalog.build import Build, build
from derive.errors import CatalogError, Issue
from derive.lambda_sql.shuffle import check_shuffles
from derive.protocol.entry_points import find_authoring
from derive.protocol.specs import CatalogSpec, DerivationSpec


def require_sound(spec: CatalogSpec, tasks: Collection[str] | None = None) -> None:
    """Raise an error if the code of a catalog has errors.

    Args:
        spec: the catalog.
        tasks: names of the running derivations; None for all.

    Raises:
        CatalogError: the code has errors; all are included.
    """
    running = [derivation for name, derivation in spec.derivations.items() if tasks is None or name in tasks]
    issues = [issue for issue in _check_code(running) if not issue.is_note]
    if issues:
        raise CatalogError(issues)


def _check_code(derivations: Iterable[DerivationSpec]) -> list[Issue]:
    """Return the issues and notes of the code of derivations."""
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
    """Build a catalog and check its code.

    The code of a derivation is checked only if the derivation has no other issues.

    Args:
        source: path of its root file.
    """
    collects = gc.isenabled()
    # garbage collection would take a sixth of the time, and free nothing, because the built objects stay alive
    gc.disable()
    try:
        built = build(source)
        return with_issues(built, _check_code(built.spec.derivations.values()))
    finally:
        if collects:
            gc.enable()


def with_issues(built: Build, issues: Iterable[Issue]) -> Build:
    """Return a build with additional issues and notes."""
    known = set(built.issues)
    new = [issue for issue in issues if issue not in known]
    return replace(
        built,
        issues=(*built.issues, *(issue for issue in new if not issue.is_note)),
        notes=(*built.notes, *(issue for issue in new if issue.is_note)),
    )
