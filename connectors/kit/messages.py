"""Converts messages of the protocol to requests to a connector, and answers of the connector to messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import orjson

from connectors.kit.requests import (
    Application,
    Applied,
    Binding,
    ConnectorSpec,
    Field,
    Materialization,
    Opening,
    ProposedBinding,
    SourceCollection,
    ValidatedBinding,
    Validation,
)
from derive.document.pointer import JSON
from derive.errors import ProtocolError
from derive.protocol.driver import BEGUN
from derive.protocol.stubs import flow_pb2
from derive.protocol.stubs import materialize_pb2 as pb

_LOADED_BYTES = 1 << 20
"""Approximate size of a message with documents, in bytes."""


def validation_of(request: pb.ValidateRequest) -> Validation:
    """Return the request of a `Validate` message.

    Raises:
        ProtocolError: the message is malformed.
    """
    bindings = [
        ProposedBinding(
            resource=_read(binding.resource_spec_json, "resource_spec_json"),
            collection=_collection_of(binding.collection),
            field_config=_read_all(binding.field_config_json),
        )
        for binding in request.bindings
    ]
    config = _read(request.endpoint_spec_json, "endpoint_spec_json")
    return Validation(_given(request.materialization, "materialization"), config, tuple(bindings))


def application_of(request: pb.ApplyRequest, metadata: Iterable[tuple[str, str | bytes]] = ()) -> Application:
    """Return the request of an `Apply` message.

    Args:
        request: the message.
        metadata: metadata of the call.

    Raises:
        ProtocolError: the message is malformed.
    """
    materialization = _materialization_of(request.materialization)
    begun = str({str(key): value for key, value in metadata}.get(BEGUN, ""))
    numbers = frozenset(int(number) for number in begun.split(",") if number.isdigit())
    completed = frozenset(request.completed)
    version = _given(request.version, "version")
    return Application(materialization, version, request.dry_run, numbers, completed, request.compare)


def apply_response(applied: str | Applied) -> pb.ApplyResponse:
    """Return the answer to `Apply`."""
    if isinstance(applied, str):
        return pb.ApplyResponse(action_description=applied)
    return pb.ApplyResponse(
        action_description=applied.description,
        refilling=sorted(applied.refilling),
        contents=applied.contents,
        differences=[
            pb.ApplyResponse.Difference(
                binding=one.binding,
                deleted=one.deleted,
                inserted=one.inserted,
                updated=one.updated,
                rows_json=one.rows,
            )
            for one in applied.differences
        ],
    )


def opening_of(message: pb.TransactionRequest.Open) -> Opening:
    """Return the request of an `Open` message.

    Raises:
        ProtocolError: the message is malformed.
    """
    if message.key_begin > message.key_end:
        raise ProtocolError(f"key_begin of Open, {message.key_begin:#x}, is above key_end, {message.key_end:#x}")
    return Opening(
        materialization=_materialization_of(message.materialization),
        version=_given(message.version, "version"),
        key_begin=message.key_begin,
        key_end=message.key_end,
        driver_checkpoint=message.driver_checkpoint_json,
    )


def spec_response(spec: ConnectorSpec) -> pb.SpecResponse:
    """Return the answer to `Spec`."""
    return pb.SpecResponse(
        endpoint_spec_schema_json=orjson.dumps(spec.endpoint_schema).decode(),
        resource_spec_schema_json=orjson.dumps(spec.resource_schema).decode(),
        documentation_url=spec.documentation_url,
        refills=spec.refills,
        is_local=spec.is_local,
    )


def validate_response(bindings: Iterable[ValidatedBinding]) -> pb.ValidateResponse:
    """Return the answer to `Validate`."""
    response = pb.ValidateResponse()
    for binding in bindings:
        message = response.bindings.add(
            resource_path=binding.resource_path,
            delta_updates=binding.delta_updates,
            most_fields=binding.most_fields,
        )
        for field, constraint in binding.constraints.items():
            message.constraints[field].type = int(constraint.type)  # type: ignore[assignment]
            message.constraints[field].reason = constraint.reason
    return response


def loaded_messages(binding: int, documents: Sequence[bytes]) -> Iterator[pb.TransactionResponse.Loaded]:
    """Yield documents as messages of bounded size."""
    begin = size = 0
    for index, document in enumerate(documents):
        if size and size + len(document) > _LOADED_BYTES:
            yield _loaded(binding, documents[begin:index])
            begin, size = index, 0
        size += len(document)
    if begin < len(documents):
        yield _loaded(binding, documents[begin:])


def _loaded(binding: int, documents: Sequence[bytes]) -> pb.TransactionResponse.Loaded:
    message = pb.TransactionResponse.Loaded(binding=binding, arena=b"".join(documents))
    add = message.docs_json.add
    end = 0
    for document in documents:
        begin, end = end, end + len(document)
        add(begin=begin, end=end)
    return message


def _materialization_of(message: flow_pb2.MaterializationSpec) -> Materialization:
    return Materialization(
        name=_given(message.materialization, "materialization"),
        config=_read(message.endpoint_spec_json, "endpoint_spec_json"),
        bindings=tuple(map(_binding_of, message.bindings)),
    )


def _binding_of(message: flow_pb2.MaterializationSpec.Binding) -> Binding:
    collection, selection = _collection_of(message.collection), message.field_selection
    return Binding(
        resource=_read(message.resource_spec_json, "resource_spec_json"),
        resource_path=tuple(message.resource_path),
        collection=collection,
        keys=_fields(collection, selection.keys),
        values=_fields(collection, selection.values),
        document=selection.document or None,
        field_config=_read_all(selection.field_config_json),
        delta_updates=message.delta_updates,
        generation=message.generation,
    )


def _fields(collection: SourceCollection, names: Iterable[str]) -> tuple[Field, ...]:
    fields = []
    for name in names:
        if name not in collection.fields:
            raise ProtocolError(
                f"the field '{name}' is selected, and '{collection.name}' has no projection of that name"
            )
        fields.append(collection.fields[name])
    return tuple(fields)


def _collection_of(message: flow_pb2.CollectionSpec) -> SourceCollection:
    return SourceCollection(
        name=_given(message.collection, "collection"),
        key=tuple(message.key_ptrs),
        fields={projection.field: _field_of(projection) for projection in message.projections},
        schema_json=message.schema_json or "{}",
    )


def _field_of(message: flow_pb2.Projection) -> Field:
    inference = message.inference
    return Field(
        name=message.field,
        pointer=message.ptr,
        types=tuple(sorted(inference.types)),
        must_exist=inference.must_exist,
        is_key=message.is_primary_key,
        is_partition=message.is_partition_key,
        is_user_provided=message.user_provided,
        format=inference.string.format,
        content_type=inference.string.content_type,
        is_base64=inference.string.is_base64,
        max_length=inference.string.max_length,
        title=inference.title,
        description=inference.description,
    )


def _given(text: str, what: str) -> str:
    if not text:
        raise ProtocolError(f"'{what}' of the request is empty")
    return text


def _read(text: str, what: str) -> JSON:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        # The parser's message is not shown: it may contain secrets.
        raise ProtocolError(f"'{what}' of the request is not JSON, at its character {exc.pos}") from None


def _read_all(texts: Mapping[str, str]) -> dict[str, JSON]:
    return {name: _read(text, "field_config_json") for name, text in texts.items()}
