"""Field selection: which fields of a collection a binding materializes, of what its author and the connector say.

The author's word on a field is the first: included fields are there, excluded ones are not. Then the connector has what
it requires, and what it recommends where the author takes recommendations. A location is materialized once unless
somebody asks for more: of several fields for it the best is taken, which is an included one, then one that is required,
then one that the author of the collection has named, then the first by name. Whatever cannot be reconciled is an issue,
where the field is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from derive.document.pointer import parse_pointer
from derive.errors import Issue
from derive.protocol.constraint import Constraint, ConstraintType
from derive.protocol.specs import JSON, FieldsSpec, ProjectionSpec
from derive.schema.projection import DOCUMENT

REFUSED = "E710"
"""Code of issues of fields, most of which may be mended at the endpoint as well as in the catalog."""
_UNSAID = Constraint(ConstraintType.FIELD_FORBIDDEN, "it does not say that it can take it")
_REFUSED = (ConstraintType.FIELD_FORBIDDEN, ConstraintType.UNSATISFIABLE)


@dataclass(frozen=True, slots=True)
class FieldSelection:
    """The fields of a binding.

    Attributes:
        keys: those of the key, in its order, which is that of packed keys.
        values: the others, sorted, which is the order of packed values.
        document: that of the whole document; None if it is not materialized.
        config: what the author tells the connector of fields.
        left_out: those that would be recommended, if there were room for them.
        most: how many there is room for; 0 if there is no bound.
    """

    keys: tuple[str, ...]
    values: tuple[str, ...]
    document: str | None = None
    config: Mapping[str, JSON] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    most: int = 0

    @property
    def all(self) -> tuple[str, ...]:
        """All fields: key, values, document."""
        return (*self.keys, *self.values, *([self.document] if self.document is not None else []))


def select_fields(
    key: Sequence[str],
    projections: Sequence[ProjectionSpec],
    constraints: Mapping[str, Constraint],
    wanted: FieldsSpec,
    stored: Sequence[str] = (),
    most: int = 0,
) -> FieldSelection | tuple[Issue, ...]:
    """The fields that a binding materializes, or everything that stands against it.

    Args:
        key: JSON pointers of the collection's key.
        projections: its fields, sorted by name.
        constraints: what the connector asks, by field.
        wanted: what the author of the binding asks.
        stored: fields that were materialized until now, which stay unless the author says otherwise.
        most: how many there is room for; 0 if there is no bound.
    """
    selector = _Selector(key, projections, constraints, wanted, stored, most)
    selection = selector.select()
    return tuple(selector.issues) or selection


class _Selector:
    def __init__(
        self,
        key: Sequence[str],
        projections: Sequence[ProjectionSpec],
        constraints: Mapping[str, Constraint],
        wanted: FieldsSpec,
        stored: Sequence[str],
        most: int,
    ) -> None:
        self.issues: list[Issue] = []
        self._key = tuple(key)
        self._fields = {projection.field: projection for projection in projections}
        self._constraints = constraints
        self._wanted = wanted
        self._stored = stored
        self._most = most
        self._left_out: list[str] = []
        self._excluded = frozenset(wanted.exclude)
        self._locations: dict[str, list[str]] = {}
        for projection in projections:
            self._locations.setdefault(projection.pointer, []).append(projection.field)
        self._selected: set[str] = set()

    def select(self) -> FieldSelection:
        for name in (*self._wanted.include, *self._wanted.key):
            self._include(name)
        for name in sorted({*self._fields, *self._constraints}):
            self._require(name)
        self._require_locations()
        if self._wanted.recommended:
            self._keep()
            self._recommend()
        self._require_room()
        keys = tuple(self._key_field(index, pointer) for index, pointer in enumerate(self._key))
        roots = [name for name in self._locations.get("", ()) if name in self._selected and name not in keys]
        document = min(roots, key=self._rank) if roots else None
        values = sorted(self._selected.difference(keys, [document]))
        config = {name: value for name, value in self._wanted.include.items() if name in self._selected}
        return FieldSelection(keys, tuple(values), document, config, tuple(self._left_out), self._most)

    def _include(self, name: str) -> None:
        if name not in self._fields:
            return  # the catalog's rules have told
        constraint = self._constraint(name)
        if constraint.type in _REFUSED:
            self._issue(name, f"the field '{name}' is wanted, and the connector refuses it", constraint)
        self._selected.add(name)

    def _require(self, name: str) -> None:
        """Take a field that is required by its name."""
        constraint = self._constraint(name)
        required = constraint.type is ConstraintType.FIELD_REQUIRED
        if name not in self._fields:
            if required or constraint.type in (ConstraintType.LOCATION_REQUIRED, ConstraintType.UNSATISFIABLE):
                self._issue(name, f"the connector requires a field '{name}', which the collection has not", constraint)
        elif constraint.type is ConstraintType.UNSATISFIABLE:
            if self._is_unsatisfiable(name) and name not in self._selected:
                hint = None if self._fields[name].pointer in ("", *self._key) else "exclude it to go on without it"
                self._issue(name, f"the connector cannot take the field '{name}' any more", constraint, hint)
        elif required and name in self._excluded:
            self._issue(name, f"the field '{name}' is excluded, and the connector requires it", constraint)
        elif required:
            self._selected.add(name)

    def _require_locations(self) -> None:
        for pointer, names in self._locations.items():
            requiring = [name for name in names if self._constraint(name).type is ConstraintType.LOCATION_REQUIRED]
            if (requiring or pointer in self._key) and not self._take(names):
                if any(self._is_unsatisfiable(name) for name in names):
                    continue  # that has been told
                told = next(iter(requiring), names[0])
                needs = "the connector requires it" if requiring else "it is of the key"
                excluded = [name for name in names if name in self._excluded]
                at = next(iter(excluded), told)
                where = f"'{pointer}'" if pointer else "the whole document"
                why = "is excluded" if excluded else "can be no field"
                self._issue(at, f"{where} {why}, and {needs}", self._constraint(told))

    def _take(self, names: Sequence[str]) -> bool:
        """Whether some field of a location is selected; if none was, then the best one is now."""
        if not self._selected.isdisjoint(names):
            return True
        allowed = [name for name in names if self._is_allowed(name)]
        if allowed:
            self._selected.add(min(allowed, key=self._rank))
        return bool(allowed)

    def _keep(self) -> None:
        """Take the fields that were materialized until now: a column that is not written any more tells lies."""
        for name in self._stored:
            if name in self._selected or name not in self._fields or self._is_deep(self._fields[name].pointer):
                continue
            if self._is_allowed(name):
                self._selected.add(name)
            elif name not in self._excluded and not self._is_unsatisfiable(name):  # else that has been told
                message = f"the field '{name}' was materialized until now, and cannot be any more"
                self._issue(name, message, self._constraint(name), "exclude it to go on without it")

    def _is_deep(self, pointer: str) -> bool:
        """Whether the author leaves out what lies so deep."""
        return self._wanted.depth is not None and len(parse_pointer(pointer)) > self._wanted.depth

    def _recommend(self) -> None:
        """Take what is recommended, as far as there is room for it: what lies less deep comes first."""
        for pointer, names in sorted(self._locations.items(), key=lambda item: item[0].count("/")):
            recommended = [name for name in names if self._constraint(name).type is ConstraintType.LOCATION_RECOMMENDED]
            if not recommended or self._is_deep(pointer) or not self._selected.isdisjoint(names):
                continue
            if self._most and len(self._selected) >= self._most:
                self._left_out += [name for name in recommended if self._is_allowed(name)][:1]
            else:
                self._take(recommended)

    def _require_room(self) -> None:
        """Require that there is room for what the author wants and the connector requires."""
        count = len(self._selected)
        if self._most and count > self._most:
            message = f"{count:,} fields are to be materialized, and the endpoint has room for {self._most:,}"
            hint = "exclude some, or require fewer; the document has them anyway"
            self.issues.append(Issue(REFUSED, message, self._wanted.position, hint))

    def _key_field(self, index: int, pointer: str) -> str:
        if self._wanted.key:
            return self._wanted.key[index]
        names = [name for name in self._locations.get(pointer, ()) if name in self._selected]
        return min(names, key=self._rank, default="")

    def _constraint(self, name: str) -> Constraint:
        return self._constraints.get(name, _UNSAID)

    def _is_allowed(self, name: str) -> bool:
        return name not in self._excluded and self._constraint(name).type not in _REFUSED

    def _is_unsatisfiable(self, name: str) -> bool:
        """Whether a field must be there and cannot be; the author may go on without it."""
        return name not in self._excluded and self._constraint(name).type is ConstraintType.UNSATISFIABLE

    def _rank(self, name: str) -> tuple[bool, int, bool, bool, str]:
        """The better of two fields of one location has the lesser rank."""
        is_included = name in self._wanted.include
        constraint = self._constraint(name).type
        is_explicit = self._fields[name].explicit
        return not is_included, constraint, not is_explicit, name != DOCUMENT, name

    def _issue(self, name: str, message: str, constraint: Constraint, hint: str | None = None) -> None:
        reason = f": {constraint.reason}" if constraint.reason else ""
        self.issues.append(Issue(REFUSED, f"{message}{reason}", self._wanted.position_of(name), hint))
