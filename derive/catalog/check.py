"""Checking the code in a catalog: each connector looks at its derivations."""

from __future__ import annotations

from derive.errors import Issue
from derive.protocol.derive import find_connector
from derive.protocol.specs import CatalogSpec


def check(spec: CatalogSpec) -> list[Issue]:
    """Everything wrong with the lambdas, migrations and modules of a catalog that builds."""
    return [issue for each in spec.derivations.values() for issue in find_connector(each.connector).check(each)]
