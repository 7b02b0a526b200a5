"""The foreign keys that a transaction checks at COMMIT, by their definitions and by SET CONSTRAINTS."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from derive.sql.planner.interfaces import Constraint

ConstraintName: TypeAlias = tuple[str, str]
"""Schema and name of a constraint."""


@dataclass(frozen=True, slots=True)
class Deferral:
    """The effect of the SET CONSTRAINTS of a transaction.

    Attributes:
        all: whether SET CONSTRAINTS ALL has deferred the deferrable constraints; None without this statement.
        named: for each named constraint, whether it is deferred.
    """

    all: bool | None = None
    named: Mapping[ConstraintName, bool] = field(default_factory=dict)

    def defers(self, schema: str, key: Constraint) -> bool:
        """Return whether a foreign key is checked at COMMIT.

        Args:
            schema: schema of the table of the foreign key.
            key: the foreign key.
        """
        if key.reference is None or not key.reference.deferral:
            return False
        named = self.named.get((schema, key.name), self.all)
        return key.reference.deferral == "d" if named is None else named

    def changed(self, names: Collection[ConstraintName] | None, *, is_deferred: bool) -> Deferral:
        """Return the effect of one more SET CONSTRAINTS, with ALL if `names` is None."""
        if names is None:
            return Deferral(is_deferred)
        return Deferral(self.all, {**self.named, **dict.fromkeys(names, is_deferred)})


NOTHING_SET = Deferral()
"""The effect of no SET CONSTRAINTS."""
