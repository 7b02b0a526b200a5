"""A materialization is a task like any other."""

from __future__ import annotations

from derive.engine.transactor import TaskSpec
from derive.position import Position
from derive.protocol.specs import (
    AddressEndpoint,
    BindingSpec,
    CatalogSpec,
    CollectionSpec,
    EndpointConfig,
    FieldsSpec,
    InputSpec,
    MaterializationSpec,
)

AT = Position("flow.yaml", 2, 3)
COLLECTION = CollectionSpec("a/source", ("/id",), (None,), {}, {}, (), AT)


def materialization() -> MaterializationSpec:
    read = InputSpec(0, "a/source -> rows", "a/source", AT, backfill=1)
    binding = BindingSpec(read, COLLECTION, {"table": "rows"}, FieldsSpec(AT, positions={"id": PLACE}), AT)
    endpoint = AddressEndpoint("localhost:1", EndpointConfig({}, "", AT), AT)
    return MaterializationSpec("a/view", endpoint, (binding,), {"a/source": COLLECTION}, 1_000_000, AT)


PLACE = Position("flow.yaml", 9, 9)


def test_it_is_a_task() -> None:
    task: TaskSpec = materialization()

    assert task.name == "a/view"
    assert [spec.state_key for spec in task.inputs] == ["a/source -> rows.v1"]
    assert task.sources == {"a/source": COLLECTION}


def test_a_binding_is_named_as_its_input() -> None:
    assert materialization().bindings[0].name == "a/source -> rows"


def test_a_field_is_where_it_is_named() -> None:
    fields = materialization().bindings[0].fields

    assert (fields.position_of("id"), fields.position_of("other")) == (PLACE, AT)


def test_a_catalog_finds_it_by_name() -> None:
    catalog = CatalogSpec("flow.yaml", {}, {}, (), {}, {"a/view": materialization()})

    assert catalog.find_materialization("a/view") == materialization()
