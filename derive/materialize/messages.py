"""Specs as messages of the protocol, complete enough for connectors written for other runtimes.

Some of these refuse a collection without a schema URI, or a binding without a shuffle, although they use neither.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from derive.materialize.fields import FieldSelection
from derive.protocol.constraint import Constraint, ConstraintType
from derive.protocol.secrets import hide
from derive.protocol.specs import (
    JSON,
    AddressEndpoint,
    BindingSpec,
    CollectionSpec,
    EndpointSpec,
    MaterializationSpec,
    ProjectionSpec,
)
from derive.protocol.stubs import flow_pb2 as flow
from derive.protocol.stubs import materialize_pb2 as pb
from derive.schema.projection import UUID_POINTER
from derive.schema.shape import NUMBER

_ACK = '{"_meta":{"ack":true,"uuid":""}}'
_LONGEST = 2**32 - 1


@dataclass(frozen=True, slots=True)
class ValidatedBinding:
    """A connector's answer for a binding.

    Attributes:
        constraints: constraints of fields, by name.
        resource_path: place in the endpoint, such as the name of a table.
        delta_updates: whether documents are stored without loading earlier ones.
        most_fields: maximum number of fields, key and document included; 0 for no maximum.
    """

    constraints: Mapping[str, Constraint]
    resource_path: tuple[str, ...]
    delta_updates: bool = False
    most_fields: int = 0


def validate_request(spec: MaterializationSpec, config: JSON) -> pb.ValidateRequest:
    """Return the request for the constraints of bindings.

    Args:
        spec: the materialization.
        config: the endpoint's configuration, with secrets resolved.
    """
    return pb.ValidateRequest(
        materialization=spec.name,
        endpoint_type=_endpoint_type(spec.endpoint),
        endpoint_spec_json=_text(config),
        bindings=[
            pb.ValidateRequest.Binding(
                resource_spec_json=_text(binding.resource),
                collection=collection_message(binding.collection),
                field_config_json={name: _text(value) for name, value in binding.fields.include.items()},
            )
            for binding in spec.bindings
        ],
    )


def validated_binding(message: pb.ValidateResponse.Binding) -> ValidatedBinding:
    """Return a connector's answer for a binding; a constraint of an unknown type forbids its field."""
    known = {int(kind): kind for kind in ConstraintType}
    constraints = {
        name: Constraint(known.get(constraint.type, ConstraintType.FIELD_FORBIDDEN), constraint.reason)
        for name, constraint in message.constraints.items()
    }
    return ValidatedBinding(constraints, tuple(message.resource_path), message.delta_updates, message.most_fields)


def materialization_message(
    spec: MaterializationSpec,
    config: JSON,
    bindings: list[tuple[ValidatedBinding, FieldSelection]],
    generations: Mapping[str, str] | None = None,
) -> flow.MaterializationSpec:
    """Return the message of a materialization.

    Args:
        spec: the materialization.
        config: the endpoint's configuration, with secrets resolved.
        bindings: for each binding, the connector's answer and the selected fields.
        generations: for each binding (by state key), the generation of its rows; None if the connector does not refill.
    """
    named = generations or {}
    return flow.MaterializationSpec(
        materialization=spec.name,
        endpoint_type=_endpoint_type(spec.endpoint),
        endpoint_spec_json=_text(config),
        bindings=[
            _binding_message(spec, binding, validated, selection, named.get(binding.input.state_key, ""))
            for binding, (validated, selection) in zip(spec.bindings, bindings, strict=True)
        ],
    )


def version_of(message: flow.MaterializationSpec, secrets: frozenset[str]) -> str:
    """Return a text that differs for every change of a materialization, except changes of secrets."""
    stripped = flow.MaterializationSpec()
    stripped.CopyFrom(message)
    stripped.endpoint_spec_json = hide(message.endpoint_spec_json, secrets)
    return hashlib.sha256(stripped.SerializeToString(deterministic=True)).hexdigest()[:16]


def collection_message(spec: CollectionSpec) -> flow.CollectionSpec:
    """Return the message of a collection, with all properties of its fields."""
    return flow.CollectionSpec(
        collection=spec.name,
        schema_uri=_schema_uri(spec),
        key_ptrs=spec.key,
        uuid_ptr=UUID_POINTER,
        partition_fields=[partition.field for partition in spec.partitions],
        projections=[_projection_message(projection) for projection in spec.projections],
        ack_json_template=_ACK,
        schema_json=_text(spec.read_schema),
    )


def _binding_message(
    spec: MaterializationSpec,
    binding: BindingSpec,
    validated: ValidatedBinding,
    selection: FieldSelection,
    generation: str,
) -> flow.MaterializationSpec.Binding:
    collection = binding.collection
    return flow.MaterializationSpec.Binding(
        resource_spec_json=_text(binding.resource),
        resource_path=validated.resource_path,
        collection=collection_message(collection),
        field_selection=flow.FieldSelection(
            keys=selection.keys,
            values=selection.values,
            document=selection.document or "",
            field_config_json={name: _text(value) for name, value in selection.config.items()},
        ),
        delta_updates=validated.delta_updates,
        shuffle=flow.Shuffle(
            group_name=f"materialize/{spec.name}/{binding.input.state_key}",
            source_collection=collection.name,
            shuffle_key_ptr=collection.key,
            uses_source_key=True,
            source_schema_uri=_schema_uri(collection),
            uses_source_schema=True,
            priority=binding.input.priority,
        ),
        generation="" if validated.delta_updates else generation,
    )


def _projection_message(spec: ProjectionSpec) -> flow.Projection:
    return flow.Projection(
        ptr=spec.pointer,
        field=spec.field,
        user_provided=spec.explicit,
        is_partition_key=spec.is_partition,
        is_primary_key=spec.is_key,
        inference=_inference_message(spec),
    )


def _inference_message(spec: ProjectionSpec) -> flow.Inference:
    inference = flow.Inference(
        types=_types(spec.types),
        must_exist=spec.exists == "must",
        title=spec.title or "",
        description=spec.description or "",
    )
    if "string" in spec.types:
        inference.string.CopyFrom(
            flow.Inference.String(
                content_type=spec.content_type or "",
                format=spec.format or "",
                is_base64=spec.content_encoding == "base64",
                max_length=min(spec.max_length or 0, _LONGEST),
            )
        )
    return inference


def _types(types: frozenset[str]) -> list[str]:
    """Return the names of types on the wire, sorted: a field of any number is a `number`."""
    return sorted((types - NUMBER) | {"number"} if types >= NUMBER else types)


def _schema_uri(spec: CollectionSpec) -> str:
    return f"flow://collection/{spec.name}/schema"


def _endpoint_type(endpoint: EndpointSpec) -> flow.EndpointType:
    return flow.REMOTE if isinstance(endpoint, AddressEndpoint) else flow.FLOW_SINK


def _text(value: JSON) -> str:
    # Not orjson: a schema may have integers of any length.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
