"""The protocol's numbers and types, written down a second time, and the stubs that follow from the .proto files."""

from __future__ import annotations

import re

import pytest
from generated_stubs import STUBS, generate
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from derive.engine.transactor import TaskSpec
from derive.position import Position
from derive.protocol.driver import SERVICE, DriverClient, DriverServicer
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
from derive.protocol.stubs import compute_pb2, flow_pb2, materialize_pb2, protocol_pb2

MESSAGES = """\
materialize.SpecRequest: endpoint_type=1 flow.EndpointType, endpoint_spec_json=2 string
materialize.SpecResponse: endpoint_spec_schema_json=1 string, resource_spec_schema_json=2 string, documentation_url=3 string, refills=100 bool, is_local=101 bool
materialize.ValidateRequest: materialization=1 string, endpoint_type=2 flow.EndpointType, endpoint_spec_json=3 string, bindings=4 repeated materialize.ValidateRequest.Binding
materialize.ValidateRequest.Binding: resource_spec_json=1 string, collection=2 flow.CollectionSpec, field_config_json=3 map<string,string>
materialize.ValidateResponse: bindings=1 repeated materialize.ValidateResponse.Binding
materialize.ValidateResponse.Binding: constraints=1 map<string,materialize.Constraint>, resource_path=2 repeated string, delta_updates=3 bool, most_fields=100 uint32
materialize.Constraint: type=2 materialize.Constraint.Type, reason=3 string
materialize.ApplyRequest: materialization=1 flow.MaterializationSpec, version=2 string, dry_run=3 bool, completed=100 repeated string, compare=101 uint32
materialize.ApplyResponse: action_description=1 string, refilling=100 repeated uint32, contents=101 repeated string, differences=102 repeated materialize.ApplyResponse.Difference
materialize.ApplyResponse.Difference: binding=1 uint32, deleted=2 uint64, inserted=3 uint64, updated=4 uint64, rows_json=5 repeated string
materialize.TransactionRequest: open=1 materialize.TransactionRequest.Open, load=2 materialize.TransactionRequest.Load, prepare=3 materialize.TransactionRequest.Prepare, store=4 materialize.TransactionRequest.Store, commit=5 materialize.TransactionRequest.Commit
materialize.TransactionRequest.Open: materialization=1 flow.MaterializationSpec, version=2 string, key_begin=3 fixed32, key_end=4 fixed32, driver_checkpoint_json=5 bytes
materialize.TransactionRequest.Load: binding=1 uint32, arena=2 bytes, packed_keys=3 repeated flow.Slice
materialize.TransactionRequest.Prepare: flow_checkpoint=1 bytes
materialize.TransactionRequest.Store: binding=1 uint32, arena=2 bytes, packed_keys=3 repeated flow.Slice, packed_values=4 repeated flow.Slice, docs_json=5 repeated flow.Slice, exists=6 repeated bool, delete=7 repeated bool
materialize.TransactionRequest.Commit:
materialize.TransactionResponse: opened=1 materialize.TransactionResponse.Opened, loaded=2 materialize.TransactionResponse.Loaded, prepared=3 materialize.TransactionResponse.Prepared, committed=4 materialize.TransactionResponse.Committed
materialize.TransactionResponse.Opened: flow_checkpoint=1 bytes, contents=100 repeated string, narrower=101 repeated bytes
materialize.TransactionResponse.Loaded: binding=1 uint32, arena=2 bytes, docs_json=3 repeated flow.Slice
materialize.TransactionResponse.Prepared: driver_checkpoint_json=1 bytes, rfc7396_merge_patch=2 bool
materialize.TransactionResponse.Committed:
flow.Slice: begin=1 uint32, end=2 uint32
flow.Projection: ptr=1 string, field=2 string, user_provided=3 bool, is_partition_key=4 bool, is_primary_key=5 bool, inference=6 flow.Inference
flow.Inference: types=1 repeated string, must_exist=2 bool, string=3 flow.Inference.String, title=4 string, description=5 string
flow.Inference.String: content_type=3 string, format=4 string, is_base64=5 bool, max_length=6 uint32
flow.CollectionSpec: collection=1 string, schema_uri=2 string, key_ptrs=3 repeated string, uuid_ptr=4 string, partition_fields=5 repeated string, projections=6 repeated flow.Projection, ack_json_template=7 string, schema_json=8 string
flow.FieldSelection: keys=1 repeated string, values=2 repeated string, document=3 string, field_config_json=4 map<string,string>
flow.MaterializationSpec: materialization=1 string, endpoint_type=2 flow.EndpointType, endpoint_spec_json=3 string, bindings=4 repeated flow.MaterializationSpec.Binding
flow.MaterializationSpec.Binding: resource_spec_json=1 string, resource_path=2 repeated string, collection=3 flow.CollectionSpec, field_selection=4 flow.FieldSelection, delta_updates=5 bool, shuffle=6 flow.Shuffle, generation=100 string
flow.Shuffle: group_name=1 string, source_collection=2 string, source_partitions=3 protocol.LabelSelector, source_uuid_ptr=4 string, shuffle_key_ptr=5 repeated string, uses_source_key=6 bool, source_schema_uri=8 string, uses_source_schema=9 bool, validate_schema_at_read=10 bool, filter_r_clocks=11 bool, read_delay_seconds=12 uint32, priority=13 uint32
protocol.LabelSelector: include=1 protocol.LabelSet, exclude=2 protocol.LabelSet
protocol.LabelSet: labels=1 repeated protocol.Label
protocol.Label: name=1 string, value=2 string
flow.compute.v1.ComputeCommand: hello=1 flow.compute.v1.Hello, create_instance=2 flow.compute.v1.CreateInstance, create_dataflows=3 flow.compute.v1.CreateDataflows, allow_compaction=4 flow.compute.v1.AllowCompaction, peek=5 flow.compute.v1.Peek, cancel_peeks=6 flow.compute.v1.CancelPeeks, initialization_complete=7 flow.compute.v1.InitializationComplete
flow.compute.v1.Hello: epoch=1 uint64, session=2 uint64, protocol=3 string, folder=4 string
flow.compute.v1.CreateInstance: name=1 string
flow.compute.v1.CreateDataflows: dataflows=1 repeated flow.compute.v1.Dataflow
flow.compute.v1.Dataflow: id=1 uint64, plan=2 bytes, imports=3 repeated flow.compute.v1.Import, index=4 flow.compute.v1.Index, materialized=5 flow.compute.v1.Materialized, tail=6 flow.compute.v1.Tail, as_of=7 int64, number=8 uint64, name=9 string
flow.compute.v1.Import: id=1 uint64, source=2 bytes, name=3 string
flow.compute.v1.Index: key=2 bytes
flow.compute.v1.Materialized: definition=1 int64
flow.compute.v1.Tail: has_snapshot=1 bool, of=2 uint64, up_to=3 int64
flow.compute.v1.AllowCompaction: compactions=1 repeated flow.compute.v1.Compaction
flow.compute.v1.Compaction: id=1 uint64, frontier=2 int64
flow.compute.v1.Peek: uuid=1 uint64, query=2 bytes, time=3 int64, arguments=4 bytes, most_bytes=5 uint64
flow.compute.v1.CancelPeeks: uuids=1 repeated uint64
flow.compute.v1.InitializationComplete:
flow.compute.v1.ComputeResponse: welcome=1 flow.compute.v1.Welcome, frontier_uppers=2 flow.compute.v1.FrontierUppers, peek_response=3 flow.compute.v1.PeekResponse, tail_response=4 flow.compute.v1.TailResponse, status=5 flow.compute.v1.Status, report=6 flow.compute.v1.Report
flow.compute.v1.Welcome: process=1 string, epoch=2 uint64, kept=3 repeated uint64, rebuilt=4 repeated uint64, dropped=5 repeated uint64, reasons=6 repeated string, names=7 map<uint64,string>
flow.compute.v1.FrontierUppers: uppers=1 repeated flow.compute.v1.Upper
flow.compute.v1.Upper: id=1 uint64, since=2 int64, upper=3 int64, number=4 uint64
flow.compute.v1.Failure: error_json=1 bytes
flow.compute.v1.PeekResponse: uuid=1 uint64, rows=2 bytes, failure=3 flow.compute.v1.Failure, is_last=4 bool
flow.compute.v1.TailResponse: id=1 uint64, lower=2 int64, upper=3 int64, updates=4 bytes, failure=5 flow.compute.v1.Failure
flow.compute.v1.Status: id=1 uint64, failure=2 flow.compute.v1.Failure, number=3 uint64
flow.compute.v1.Report: memory_bytes=1 uint64, hydrations=2 repeated flow.compute.v1.Hydration
flow.compute.v1.Hydration: id=1 uint64, stage=2 string, rows=3 uint64, since=4 int64, running=5 int64
""".splitlines()

SCALARS = {
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_FIXED32: "fixed32",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_UINT64: "uint64",
}


def declared_messages() -> dict[str, Descriptor]:
    """All messages by name, but for those that make up maps."""
    messages: dict[str, Descriptor] = {}

    def take(message: Descriptor) -> None:
        if not message.GetOptions().map_entry:
            messages[message.full_name] = message
            for inner in message.nested_types:
                take(inner)

    for file in (compute_pb2.DESCRIPTOR, materialize_pb2.DESCRIPTOR, flow_pb2.DESCRIPTOR, protocol_pb2.DESCRIPTOR):
        for message in file.message_types_by_name.values():
            take(message)
    return messages


def type_of(field: FieldDescriptor) -> str:
    if field.message_type and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        return f"map<{type_of(key)},{type_of(value)}>"
    kind = field.message_type or field.enum_type
    return ("repeated " if field.is_repeated else "") + (kind.full_name if kind else SCALARS[field.type])


@pytest.mark.parametrize("line", MESSAGES)
def test_stub_fields_have_the_numbers_and_types_of_the_protocol(line: str) -> None:
    name, _, fields = line.partition(":")
    declared = declared_messages()[name].fields

    assert ", ".join(f"{field.name}={field.number} {type_of(field)}" for field in declared) == fields.strip()


def test_stubs_have_all_messages() -> None:
    assert sorted(declared_messages()) == sorted(line.partition(":")[0] for line in MESSAGES)


def test_stub_enumerations_have_the_numbers_of_the_protocol() -> None:
    assert dict(materialize_pb2.Constraint.Type.items()) == {
        "FIELD_REQUIRED": 0,
        "LOCATION_REQUIRED": 1,
        "LOCATION_RECOMMENDED": 2,
        "FIELD_OPTIONAL": 3,
        "FIELD_FORBIDDEN": 4,
        "UNSATISFIABLE": 5,
    }
    assert dict(flow_pb2.EndpointType.items()) == {
        "REMOTE": 0,
        "POSTGRESQL": 1,
        "SQLITE": 2,
        "S3": 3,
        "GS": 4,
        "SNOWFLAKE": 5,
        "WEBHOOK": 6,
        "AIRBYTE_SOURCE": 7,
        "FLOW_SINK": 8,
    }


def test_methods_are_called_and_served_under_one_path() -> None:
    (service,) = materialize_pb2.DESCRIPTOR.services_by_name.values()

    assert service.full_name == SERVICE == "materialize.Driver"
    assert [
        (method.name, method.input_type.name, method.output_type.name, method.client_streaming, method.server_streaming)
        for method in service.methods
    ] == [
        ("Spec", "SpecRequest", "SpecResponse", False, False),
        ("Validate", "ValidateRequest", "ValidateResponse", False, False),
        ("Apply", "ApplyRequest", "ApplyResponse", False, False),
        ("Transactions", "TransactionRequest", "TransactionResponse", True, True),
    ]
    served = {name for name in vars(DriverServicer) if not name.startswith("_")}
    assert served == {"spec", "validate", "apply", "transactions"}
    assert DriverClient.__doc__ is not None
    assert all(f"{name}: " in DriverClient.__doc__ for name in served)


def without_version(text: str) -> str:
    """The stub, whichever release of the compiler it is of."""
    text = re.sub(r"# Protobuf Python Version: [\d.]+", "", text)
    return re.sub(r"(Domain\.PUBLIC,)\s+\d+,\s+\d+,\s+\d+,", r"\1", text)


def test_stubs_follow_from_the_proto_files() -> None:
    committed = {path.name: without_version(path.read_text()) for path in STUBS.glob("*_pb2.py*")}

    assert committed == {name: without_version(text) for name, text in generate().items()}


# A materialization is a task like any other.


AT = Position("flow.yaml", 2, 3)
COLLECTION = CollectionSpec("a/source", ("/id",), (None,), {}, {}, (), AT)


def materialization() -> MaterializationSpec:
    read = InputSpec(0, "a/source -> rows", "a/source", AT, backfill=1)
    binding = BindingSpec(read, COLLECTION, {"table": "rows"}, FieldsSpec(AT, positions={"id": PLACE}), AT)
    endpoint = AddressEndpoint("localhost:1", EndpointConfig({}, "", AT), AT)
    return MaterializationSpec("a/view", endpoint, (binding,), {"a/source": COLLECTION}, 1_000_000, AT)


PLACE = Position("flow.yaml", 9, 9)


def test_materialization_is_a_task() -> None:
    task: TaskSpec = materialization()

    assert task.name == "a/view"
    assert [spec.state_key for spec in task.inputs] == ["a/source -> rows.v1"]
    assert task.sources == {"a/source": COLLECTION}


def test_binding_has_the_name_of_its_input() -> None:
    assert materialization().bindings[0].name == "a/source -> rows"


def test_field_position_is_that_of_its_name() -> None:
    fields = materialization().bindings[0].fields

    assert (fields.position_of("id"), fields.position_of("other")) == (PLACE, AT)


def test_catalog_finds_a_materialization_by_name() -> None:
    catalog = CatalogSpec("flow.yaml", {}, {}, (), {}, {"a/view": materialization()})

    assert catalog.find_materialization("a/view") == materialization()
