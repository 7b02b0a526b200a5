"""What every connector answers to `Spec`, `Validate` and `Apply`."""

from __future__ import annotations

import json

import grpc
import pytest
from jsonschema import Draft202012Validator
from raw_client import DOCUMENT, KEYS, VALUES, collection
from served import Client, opening
from subject import Subject

from derive.protocol.stubs import materialize_pb2 as pb


def refusal(error: pytest.ExceptionInfo[grpc.RpcError]) -> tuple[grpc.StatusCode, str]:
    assert isinstance(error.value, grpc.Call)
    return error.value.code(), error.value.details() or ""


def test_schemas_are_such_and_hold_for_its_configurations(client: Client, subject: Subject) -> None:
    spec = client.spec()

    for text, value in (
        (spec.endpoint_spec_schema_json, subject.config),
        (spec.resource_spec_schema_json, subject.resource("things", not subject.loads)),
    ):
        schema = json.loads(text)
        Draft202012Validator.check_schema(schema)
        Draft202012Validator(schema).validate(value)
    assert spec.documentation_url


def test_every_field_has_a_constraint_with_a_reason(client: Client, subject: Subject) -> None:
    left, right = client.validate(["left", "right"], delta=not subject.loads).bindings

    assert sorted(left.constraints) == sorted([*KEYS, *VALUES, DOCUMENT])
    assert all(constraint.reason for constraint in left.constraints.values())
    assert left.resource_path
    assert list(left.resource_path) != list(right.resource_path)
    assert left.delta_updates is (not subject.loads)
    required = {pb.Constraint.FIELD_REQUIRED, pb.Constraint.LOCATION_REQUIRED}
    if subject.loads:
        assert all(left.constraints[key].type in required for key in KEYS)


def test_delta_updates_are_those_that_are_asked_for(client: Client, subject: Subject) -> None:
    if not subject.deltas:
        pytest.skip("it has none")

    assert client.validate(["things"], delta=True).bindings[0].delta_updates


def test_a_dry_run_changes_nothing_and_says_what_would_be_done(client: Client, subject: Subject) -> None:
    spec = client.materialization()

    planned = client.apply(spec, dry_run=True)
    assert planned == client.apply(spec, dry_run=True)
    assert planned == client.apply(spec)
    assert bool(planned) is subject.applies
    assert "password" not in planned
    # there is nothing more to do
    assert client.apply(spec, "v2", dry_run=True) == client.apply(spec, "v2") == ""


def test_configurations_that_fail_the_schema_are_refused(client: Client, subject: Subject) -> None:
    for wrong in subject.wrong:
        with pytest.raises(grpc.RpcError) as validated:
            client.validate(["things"], config=wrong)
        spec = client.materialization()
        spec.endpoint_spec_json = json.dumps(wrong)
        with pytest.raises(grpc.RpcError) as applied:
            client.apply(spec)

        for code, text in (refusal(validated), refusal(applied), client.stream(opening(spec)).failure()):
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert text.startswith(f"the endpoint's configuration of {subject.connector.name} is not what it must be: ")


def test_resources_that_fail_the_schema_are_refused(client: Client, subject: Subject) -> None:
    spec = client.materialization(["left", "right"])
    spec.bindings[1].resource_spec_json = "[]"

    with pytest.raises(grpc.RpcError) as applied:
        client.apply(spec)

    code, text = refusal(applied)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text.startswith(f"the resource of binding 1 of {subject.connector.name} is not what it must be: ")


def test_requests_that_make_no_sense_are_refused(client: Client) -> None:
    spec = client.materialization()

    with pytest.raises(grpc.RpcError) as no_version:
        client.apply(spec, "")
    assert refusal(no_version) == (grpc.StatusCode.INVALID_ARGUMENT, "'version' of the request is empty")
    spec.bindings[0].field_selection.keys.append("nothing")
    with pytest.raises(grpc.RpcError) as no_field:
        client.apply(spec)
    what = "the field 'nothing' is selected, and 'test/things' has no projection of that name"
    assert refusal(no_field) == (grpc.StatusCode.INVALID_ARGUMENT, what)
    spec.endpoint_spec_json = '{"password": "hidden'
    with pytest.raises(grpc.RpcError) as no_json:
        client.apply(spec)
    code, text = refusal(no_json)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text.startswith("'endpoint_spec_json' of the request is not JSON")
    assert "hidden" not in text


def test_the_collection_of_these_tests_has_what_a_catalog_says() -> None:
    assert [projection.field for projection in collection().projections] == [*KEYS, *VALUES, DOCUMENT]
