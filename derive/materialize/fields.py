"""Field selection: a binding's author and its connector decide which fields the binding materializes.

The author decides first: included fields are selected, and excluded fields are not. Then the fields that the connector
requires are selected. If the author accepts recommendations, recommended fields follow. A conflict is an issue at the
position of the field's name.

A location is materialized once, unless the author includes several of its fields. Of the fields of a location, the
first of these is selected: an included field, a required field, a field that the author of the collection has named,
the first field by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from derive.document.pointer import JSON, parse_pointer
from derive.errors import Issue
from derive.plural import counted
from derive.protocol.materialization import Constraint, ConstraintType
from derive.protocol.specs import FieldsSpec, ProjectionSpec
from derive.schema.projection import DOCUMENT

REFUSED = "E710"
"""Code of issues of fields; most can be corrected at the endpoint or in the catalog."""
_UNSAID = Constraint(ConstraintType.FIELD_FORBIDDEN, "the connector has not declared that it can store the field")
_REFUSED = (ConstraintType.FIELD_FORBIDDEN, ConstraintType.UNSATISFIABLE)


@dataclass(frozen=True, slots=True)
class FieldSelection:
    """The fields of a binding.

    Attributes:
        keys: fields of the key, in the order of the key and of packed keys.
        values: other fields, sorted, in the order of packed values.
        document: field of the whole document; None if it is not materialized.
        config: the author's configuration of fields for the connector.
        left_out: recommended fields for which there is no room.
        most: maximum number of fields; 0 for no maximum.
    """

    keys: tuple[str, ...]
    values: tuple[str, ...]
    document: str | None = None
    config: Mapping[str, JSON] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    most: int = 0

    @property
    def all(self) -> tuple[str, ...]:
        """Return all fields: key, values, document."""
        return (*self.keys, *self.values, *([self.document] if self.document is not None else []))


def select_fields(
    key: Sequence[str],
    projections: Sequence[ProjectionSpec],
    constraints: Mapping[str, Constraint],
    desired: FieldsSpec,
    stored: Sequence[str] = (),
    most: int = 0,
) -> FieldSelection | tuple[Issue, ...]:
    """Return the fields that a binding materializes, or all conflicts.

    Args:
        key: JSON pointers of the collection's key.
        projections: fields of the collection, sorted by name.
        constraints: the connector's constraints, by field.
        desired: selection by the author of the binding.
        stored: fields that were materialized before; they stay selected unless the author excludes them.
        most: maximum number of fields; 0 for no maximum.
    """
    selector = _Selector(key, projections, constraints, desired, stored, most)
    selection = selector.select()
    return tuple(selector.issues) or selection


class _Selector:
    def __init__(
        self,
        key: Sequence[str],
        projections: Sequence[ProjectionSpec],
        constraints: Mapping[str, Constraint],
        desired: FieldsSpec,
        stored: Sequence[str],
        most: int,
    ) -> None:
        self.issues: list[Issue] = []
        self._key = tuple(key)
        self._fields = {projection.field: projection for projection in projections}
        self._constraints = constraints
        self._desired = desired
        self._stored = stored
        self._most = most
        self._left_out: list[str] = []
        self._excluded = frozenset(desired.exclude)
        self._locations: dict[str, list[str]] = {}
        for projection in projections:
            self._locations.setdefault(projection.pointer, []).append(projection.field)
        self._selected: set[str] = set()

    def select(self) -> FieldSelection:
        for name in (*self._desired.include, *self._desired.key):
            self._include(name)
        for name in sorted({*self._fields, *self._constraints}):
            self._require(name)
        self._require_locations()
        if self._desired.recommended:
            self._keep()
            self._recommend()
        self._require_room()
        keys = tuple(self._key_field(index, pointer) for index, pointer in enumerate(self._key))
        roots = [name for name in self._locations.get("", ()) if name in self._selected and name not in keys]
        document = min(roots, key=self._rank) if roots else None
        values = sorted(self._selected.difference(keys, [document]))
        config = {name: value for name, value in self._desired.include.items() if name in self._selected}
        return FieldSelection(keys, tuple(values), document, config, tuple(self._left_out), self._most)

    def _include(self, name: str) -> None:
        if name not in self._fields:
            return  # the rules of the catalog report it
        constraint = self._constraint(name)
        if constraint.type in _REFUSED:
            self._issue(name, f"the field '{name}' is selected, but the connector refuses it", constraint)
        self._selected.add(name)

    def _require(self, name: str) -> None:
        """Select a field that is required by its name."""
        constraint = self._constraint(name)
        required = constraint.type is ConstraintType.FIELD_REQUIRED
        if name not in self._fields:
            if required or constraint.type in (ConstraintType.LOCATION_REQUIRED, ConstraintType.UNSATISFIABLE):
                self._issue(
                    name, (f"the connector requires a field '{name}', which the collection does not have"), constraint
                )
        elif constraint.type is ConstraintType.UNSATISFIABLE:
            if self._is_unsatisfiable(name) and name not in self._selected:
                hint = (
                    None
                    if self._fields[name].pointer in ("", *self._key)
                    else "to continue without the field: exclude it"
                )
                self._issue(name, f"the connector no longer accepts the field '{name}'", constraint, hint)
        elif required and name in self._excluded:
            self._issue(name, f"the field '{name}' is excluded, but the connector requires it", constraint)
        elif required:
            self._selected.add(name)

    def _require_locations(self) -> None:
        for pointer, names in self._locations.items():
            requiring = [name for name in names if self._constraint(name).type is ConstraintType.LOCATION_REQUIRED]
            if (requiring or pointer in self._key) and not self._take(names):
                if any(self._is_unsatisfiable(name) for name in names):
                    continue  # the conflict is already reported
                decisive = next(iter(requiring), names[0])
                needs = "the connector requires it" if requiring else "it is part of the key"
                excluded = [name for name in names if name in self._excluded]
                at = next(iter(excluded), decisive)
                where = f"'{pointer}'" if pointer else "the whole document"
                why = "is excluded" if excluded else "cannot be a field"
                self._issue(at, f"{where} {why}, and {needs}", self._constraint(decisive))

    def _take(self, names: Sequence[str]) -> bool:
        """Return whether a field of a location is selected.

        If no field was selected before, select the best field first.
        """
        if not self._selected.isdisjoint(names):
            return True
        allowed = [name for name in names if self._is_allowed(name)]
        if allowed:
            self._selected.add(min(allowed, key=self._rank))
        return bool(allowed)

    def _keep(self) -> None:
        """Select the fields that are stored already; without this, their columns would become outdated."""
        for name in self._stored:
            if name in self._selected or name not in self._fields or self._is_deep(self._fields[name].pointer):
                continue
            if self._is_allowed(name):
                self._selected.add(name)
            elif name not in self._excluded and not self._is_unsatisfiable(name):  # other cases are already reported
                message = f"the field '{name}' was materialized before, but the connector refuses it now"
                self._issue(name, message, self._constraint(name), "to continue without the field: exclude it")

    def _is_deep(self, pointer: str) -> bool:
        """Return whether the author excludes locations at this depth."""
        return self._desired.depth is not None and len(parse_pointer(pointer)) > self._desired.depth

    def _recommend(self) -> None:
        """Select recommended fields, less nested locations first, as long as there is room."""
        for pointer, names in sorted(self._locations.items(), key=lambda item: item[0].count("/")):
            recommended = [name for name in names if self._constraint(name).type is ConstraintType.LOCATION_RECOMMENDED]
            if not recommended or self._is_deep(pointer) or not self._selected.isdisjoint(names):
                continue
            if self._most and len(self._selected) >= self._most:
                self._left_out += [name for name in recommended if self._is_allowed(name)][:1]
            else:
                self._take(recommended)

    def _require_room(self) -> None:
        """Check that all fields which the author includes or the connector requires have room."""
        count = len(self._selected)
        if self._most and count > self._most:
            message = f"the selection has {counted(count, 'field')}, but the endpoint has room for {self._most:,}"
            hint = "exclude fields, or require fewer fields: the stored document has all values"
            self.issues.append(Issue(REFUSED, message, self._desired.position, hint))

    def _key_field(self, index: int, pointer: str) -> str:
        if self._desired.key:
            return self._desired.key[index]
        names = [name for name in self._locations.get(pointer, ()) if name in self._selected]
        return min(names, key=self._rank, default="")

    def _constraint(self, name: str) -> Constraint:
        return self._constraints.get(name, _UNSAID)

    def _is_allowed(self, name: str) -> bool:
        return name not in self._excluded and self._constraint(name).type not in _REFUSED

    def _is_unsatisfiable(self, name: str) -> bool:
        """Return whether a field is required and cannot be stored; the author may exclude it."""
        return name not in self._excluded and self._constraint(name).type is ConstraintType.UNSATISFIABLE

    def _rank(self, name: str) -> tuple[bool, int, bool, bool, str]:
        """Return a sort key that puts the better of two fields of a location first."""
        is_included = name in self._desired.include
        constraint = self._constraint(name).type
        is_explicit = self._fields[name].explicit
        return not is_included, constraint, not is_explicit, name != DOCUMENT, name

    def _issue(self, name: str, message: str, constraint: Constraint, hint: str | None = None) -> None:
        reason = f": {constraint.reason}" if constraint.reason else ""
        self.issues.append(Issue(REFUSED, f"{message}{reason}", self._desired.position_of(name), hint))
