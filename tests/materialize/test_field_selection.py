"""Field selection: what connector and author say of fields, and what comes of it, by tables and by laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.errors import Issue
from derive.materialize.fields import FieldSelection, select_fields
from derive.position import Position
from derive.protocol.materialization import Constraint, ConstraintType
from derive.protocol.specs import FieldsSpec, ProjectionSpec

AT = Position("flow.yaml", 1, 1)
REQUIRED, NEEDED, RECOMMENDED, OPTIONAL, FORBIDDEN, UNSATISFIABLE = ConstraintType
TYPES = frozenset({"string"})


def projection(name: str, pointer: str | None = None, *, explicit: bool = False) -> ProjectionSpec:
    return ProjectionSpec(name, f"/{name}" if pointer is None else pointer, TYPES, explicit=explicit)


FIELDS = [
    projection("Id", "/id", explicit=True),
    projection("a"),
    projection("a/b"),
    projection("a/b/c"),
    projection("flow_document", ""),
    projection("id"),
    projection("other", "/a", explicit=True),
]
SQL = {
    "Id": NEEDED,
    "id": NEEDED,
    "flow_document": NEEDED,
    "a": OPTIONAL,
    "other": OPTIONAL,
    "a/b": RECOMMENDED,
    "a/b/c": RECOMMENDED,
}


def select(wanted: FieldsSpec | None = None, **changes: ConstraintType) -> FieldSelection | list[tuple[str, int]]:
    constraints = {**SQL, **{name.replace("_of_", "/"): kind for name, kind in changes.items()}}
    selected = select_fields(
        ["/id"],
        FIELDS,
        {name: Constraint(kind, f"why {name}") for name, kind in constraints.items()},
        wanted or FieldsSpec(AT),
    )
    return (
        selected if isinstance(selected, FieldSelection) else [(each.message, each.position.line) for each in selected]
    )


def wanted(
    *exclude: str,
    include: tuple[str, ...] = (),
    recommended: bool = True,
    depth: int | None = None,
    key: tuple[str, ...] = (),
) -> FieldsSpec:
    names = (*include, *exclude, *key)
    positions = {name: Position("flow.yaml", 10 + index, 1) for index, name in enumerate(names)}
    return FieldsSpec(AT, recommended, depth, {name: {} for name in include}, exclude, key, positions)


@pytest.mark.parametrize(
    ("spec", "changes", "keys", "values", "document"),
    [
        # What is recommended is there, and optional fields are not. The author's name for the key is preferred.
        (wanted(), {}, ("Id",), ("a/b", "a/b/c"), "flow_document"),
        (wanted(recommended=False), {}, ("Id",), (), "flow_document"),
        (wanted(depth=2), {}, ("Id",), ("a/b",), "flow_document"),
        (wanted("a/b"), {}, ("Id",), ("a/b/c",), "flow_document"),
        # Included fields are there, whatever is recommended; both of one location, if both are asked for.
        (wanted(include=("a", "other"), recommended=False), {}, ("Id",), ("a", "other"), "flow_document"),
        (wanted(include=("id",)), {}, ("id",), ("a/b", "a/b/c"), "flow_document"),
        (wanted(include=("id", "Id")), {}, ("Id",), ("a/b", "a/b/c", "id"), "flow_document"),
        (wanted("Id"), {}, ("id",), ("a/b", "a/b/c"), "flow_document"),
        (wanted(key=("id",)), {}, ("id",), ("a/b", "a/b/c"), "flow_document"),
        # A field that is required by its name stands for its location.
        (wanted(), {"id": REQUIRED, "a": REQUIRED}, ("id",), ("a", "a/b", "a/b/c"), "flow_document"),
        (wanted(), {"id": OPTIONAL, "Id": FORBIDDEN}, ("id",), ("a/b", "a/b/c"), "flow_document"),
        (wanted(), {"a": NEEDED}, ("Id",), ("a", "a/b", "a/b/c"), "flow_document"),
        (wanted(), {"a": RECOMMENDED, "other": RECOMMENDED}, ("Id",), ("a/b", "a/b/c", "other"), "flow_document"),
        (wanted("other"), {"a": RECOMMENDED, "other": RECOMMENDED}, ("Id",), ("a", "a/b", "a/b/c"), "flow_document"),
        # Documents may be left out where the connector lets them; a field that cannot be taken is passed over.
        (wanted("flow_document"), {"flow_document": RECOMMENDED}, ("Id",), ("a/b", "a/b/c"), None),
        (wanted(), {"flow_document": OPTIONAL}, ("Id",), ("a/b", "a/b/c"), None),
        (wanted(), {"a_of_b": FORBIDDEN}, ("Id",), ("a/b/c",), "flow_document"),
        (wanted("a/b"), {"a_of_b": UNSATISFIABLE}, ("Id",), ("a/b/c",), "flow_document"),
    ],
)  # fmt: skip
def test_fields_are_selected_by_the_rules(
    spec: FieldsSpec,
    changes: dict[str, ConstraintType],
    keys: tuple[str, ...],
    values: tuple[str, ...],
    document: str | None,
) -> None:
    selection = select(spec, **changes)

    assert isinstance(selection, FieldSelection)
    assert (selection.keys, selection.values, selection.document) == (keys, values, document)


@pytest.mark.parametrize(
    ("spec", "changes", "issues"),
    [
        (wanted(include=("a",)), {"a": FORBIDDEN}, [("the field 'a' is selected, but the connector refuses it: why a", 10)]),
        (wanted("id", "Id"), {}, [("'/id' is excluded, and the connector requires it: why Id", 11)]),
        (wanted("id", "Id"), {"id": OPTIONAL, "Id": OPTIONAL}, [("'/id' is excluded, and it is part of the key: why Id", 11)]),
        (wanted("flow_document"), {}, [("the whole document is excluded, and the connector requires it: why flow_document", 10)]),
        (wanted("a"), {"a": REQUIRED}, [("the field 'a' is excluded, but the connector requires it: why a", 10)]),
        (wanted(), {"a": UNSATISFIABLE}, [("the connector no longer accepts the field 'a': why a", 1)]),
        (wanted(), {"gone": UNSATISFIABLE}, [("the connector requires a field 'gone', which the collection does not have: why gone", 1)]),
        (wanted(), {"gone": REQUIRED, "free": OPTIONAL}, [("the connector requires a field 'gone', which the collection does not have: why gone", 1)]),
        (wanted(), {"id": FORBIDDEN, "Id": FORBIDDEN}, [("'/id' cannot be a field, and it is part of the key: why Id", 1)]),
        (wanted(), {"id": UNSATISFIABLE, "Id": FORBIDDEN}, [("the connector no longer accepts the field 'id': why id", 1)]),
    ],
)  # fmt: skip
def test_field_conflicts_are_issues(
    spec: FieldsSpec, changes: dict[str, ConstraintType], issues: list[tuple[str, int]]
) -> None:
    assert select(spec, **changes) == issues


def test_field_without_a_constraint_is_not_materialized() -> None:
    constraints = {"id": Constraint(NEEDED, "")}

    assert select_fields(["/id"], FIELDS, constraints, FieldsSpec(AT)) == FieldSelection(("id",), ())
    [issue] = select_fields(["/id"], FIELDS, constraints, wanted(include=("a",)))  # type: ignore[misc]
    assert (
        issue.message
        == "the field 'a' is selected, but the connector refuses it: the connector has not declared that it can store the field"
    )


def test_field_settings_are_part_of_the_selection() -> None:
    spec = FieldsSpec(AT, include={"a": {"size": 5}, "not-there": {}})

    selection = select(spec)

    assert isinstance(selection, FieldSelection)
    assert selection.config == {"a": {"size": 5}}
    assert selection.all == ("Id", "a", "a/b", "a/b/c", "flow_document")


NAMES = ["k1", "K1", "k2", "doc", "Doc", "v", "w", "W", "v/x"]
POINTERS = dict(zip(NAMES, ["/k1", "/k1", "/k2", "", "", "/v", "/w", "/w", "/v/x"], strict=True))


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[ProjectionSpec], dict[str, Constraint], FieldsSpec]:
    names = sorted({"k1", "k2", *draw(st.sets(st.sampled_from(NAMES)))})
    projections = [projection(name, POINTERS[name], explicit=draw(st.booleans())) for name in names]
    kinds = st.sampled_from(ConstraintType)
    constraints = {name: Constraint(draw(kinds), "") for name in names if draw(st.integers(0, 9))}
    include = draw(st.sets(st.sampled_from(names)))
    exclude = draw(st.sets(st.sampled_from(names))) - include
    spec = FieldsSpec(
        AT,
        draw(st.booleans()),
        draw(st.none() | st.integers(0, 2)),
        dict.fromkeys(sorted(include), 1),
        tuple(sorted(exclude)),
    )
    return projections, constraints, spec


@given(problems())
def test_field_selection_satisfies_its_laws(
    problem: tuple[list[ProjectionSpec], dict[str, Constraint], FieldsSpec],
) -> None:
    projections, constraints, spec = problem
    pointers = {each.field: each.pointer for each in projections}
    kind = {name: constraints[name].type if name in constraints else FORBIDDEN for name in pointers}
    result = select_fields(["/k1", "/k2"], projections, constraints, spec)

    assert result == select_fields(["/k1", "/k2"], projections, dict(reversed(constraints.items())), spec)
    allowed = {name for name in pointers if name not in spec.exclude and kind[name] not in (FORBIDDEN, UNSATISFIABLE)}
    needed = {pointer for name, pointer in pointers.items() if kind[name] is NEEDED} | {"/k1", "/k2"}
    impossible = (
        any(kind[name] in (FORBIDDEN, UNSATISFIABLE) for name in spec.include)
        or any(kind[name] is REQUIRED for name in spec.exclude)
        or any(kind[name] is UNSATISFIABLE and name not in spec.exclude for name in pointers)
        or any(allowed.isdisjoint(name for name in pointers if pointers[name] == pointer) for pointer in needed)
    )
    if not isinstance(result, FieldSelection):
        assert impossible
        assert all(isinstance(each, Issue) for each in result)
        return
    assert not impossible
    selected = set(result.all)
    assert len(result.all) == len(selected)
    assert selected <= allowed
    assert selected >= set(spec.include) | {name for name in pointers if kind[name] is REQUIRED}
    assert {pointers[name] for name in selected} >= needed
    assert tuple(pointers[name] for name in result.keys) == ("/k1", "/k2")
    assert list(result.values) == sorted(result.values)
    assert result.document is None or pointers[result.document] == ""
    assert (result.document is None) == all(pointers[name] for name in selected)
    # Nothing is there that nobody asks for, and no location twice unless it was asked for twice.
    for name in selected - set(spec.include) - {name for name in pointers if kind[name] is REQUIRED}:
        others = {other for other in selected if pointers[other] == pointers[name]}
        assert others == {name}
        assert pointers[name] in needed or (spec.recommended and kind[name] is RECOMMENDED)


@given(problems(), st.sampled_from(NAMES))
def test_exclusion_of_an_optional_field_does_not_change_other_fields(
    problem: tuple[list[ProjectionSpec], dict[str, Constraint], FieldsSpec], name: str
) -> None:
    projections, constraints, spec = problem
    result = select_fields(["/k1", "/k2"], projections, constraints, spec)
    if isinstance(result, FieldSelection) and name not in result.all:
        excluding = FieldsSpec(AT, spec.recommended, spec.depth, spec.include, (*spec.exclude, name))

        assert select_fields(["/k1", "/k2"], projections, constraints, excluding) == result
