"""The connector: type-checks a derivation's module, and opens sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connectors.derive_sqlite.shuffle import ComputedShuffle, check_shuffles
from connectors.derive_typescript.check import check_module, check_names
from connectors.derive_typescript.session import TypeScriptSession
from derive.errors import Issue
from derive.protocol.derive import Log
from derive.protocol.specs import DerivationSpec, TransformSpec

if TYPE_CHECKING:
    import apsw


class TypeScriptConnector:
    """Derivations in TypeScript."""

    def check(self, spec: DerivationSpec) -> list[Issue]:
        """Check the module against the types of its collections.

        Issues are E531 (what `deno check` reports) and E532 (a transform that no method can implement).
        """
        return check_shuffles(spec) + (check_names(spec) or check_module(spec))

    def open(self, spec: DerivationSpec, database: apsw.Connection, log: Log) -> TypeScriptSession:
        """A session; Deno starts with the first batch."""
        return TypeScriptSession(spec, database, log)

    def open_shuffle(self, spec: DerivationSpec, transform: TransformSpec) -> ComputedShuffle:
        """The computed shuffle of a transform, which is SQL here too."""
        return ComputedShuffle(spec, transform)
