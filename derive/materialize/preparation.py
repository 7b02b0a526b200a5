"""Preparation: converts a materialization of the catalog to the message for its connector, and checks it.

Connectors that were written for other runtimes accept the message, too. Some of them refuse a collection without a
schema URI, or a binding without a shuffle, although they use neither.

The connector returns its configuration schemas (Spec) and its constraints of fields (Validate); the configuration and
the author's choice of fields are checked against these. Every conflict is an issue at its position in the catalog.

A check starts each connector, requests its schemas, and requests the constraints of the bindings from its endpoint. A
catalog must be valid on all machines or on none, so a missing connector, endpoint or secret is only a note.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from connectors.kit.requests import Applied
from derive.document.pointer import JSON, escape
from derive.errors import CatalogError, EndpointGoneError, FlowError, Issue
from derive.materialize.connector import Connector, Connectors, not_installed
from derive.materialize.fields import FieldSelection, select_fields
from derive.materialize.restarts import ResetMarker, generation_of
from derive.materialize.schemas import ConnectorSchemas, faults, marked_secrets
from derive.plural import counted
from derive.protocol.materialization import Constraint, ConstraintType
from derive.protocol.secrets import hide, long_enough, references
from derive.protocol.specs import (
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
    """Return the answer of a connector for a binding; a constraint of unknown type forbids its field."""
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
        generations: for each binding (by state key), the generation of its rows; None if the connector cannot refill.
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
            priority=max(binding.input.priority, 0),  # a shadow has the lowest priority
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
    """Return the sorted names of types on the wire; a field of integers and other numbers is a `number`."""
    return sorted((types - NUMBER) | {"number"} if types >= NUMBER else types)


def _schema_uri(spec: CollectionSpec) -> str:
    return f"flow://collection/{spec.name}/schema"


def _endpoint_type(endpoint: EndpointSpec) -> flow.EndpointType:
    return flow.REMOTE if isinstance(endpoint, AddressEndpoint) else flow.FLOW_SINK


def _text(value: JSON) -> str:
    # orjson cannot write integers of any length, which a schema may have.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class PreparedBinding:
    """A binding, with all decisions about it.

    Attributes:
        spec: the binding in the catalog.
        fields: materialized fields.
        resource_path: place in the endpoint.
        delta_updates: whether documents are stored without loading earlier ones.
    """

    spec: BindingSpec
    fields: FieldSelection
    resource_path: tuple[str, ...]
    delta_updates: bool


@dataclass(frozen=True, slots=True)
class PreparedMaterialization:
    """A materialization that its connector has validated.

    Attributes:
        spec: the materialization in the catalog.
        bindings: its bindings, in the same order.
        message: message for the connector; it contains secrets and is hidden in the object's representation.
        version: version of the message, different for every change.
        secrets: texts to hide.
    """

    spec: MaterializationSpec
    bindings: tuple[PreparedBinding, ...]
    message: flow.MaterializationSpec = field(repr=False)
    version: str
    secrets: frozenset[str] = field(repr=False)

    def apply(
        self,
        connector: Connector,
        *,
        dry_run: bool = False,
        begun: Collection[str] = (),
        completed: Collection[str] = (),
        compare: int = 0,
    ) -> Applied:
        """Prepare the endpoint, or return the needed actions of a dry run.

        Args:
            connector: connector of the endpoint.
            dry_run: whether nothing is changed.
            begun: state keys of bindings with documents at the endpoint.
            completed: identities of refills that now replace rows; if there are any, the call does only this.
            compare: in a dry run, the largest number of example rows of each difference between visible rows and
                refills; 0 to compare nothing.

        Raises:
            FlowError: the endpoint cannot be prepared.
        """
        request = pb.ApplyRequest(
            materialization=self.message, version=self.version, dry_run=dry_run, completed=completed, compare=compare
        )
        try:
            return connector.apply(request, self.secrets, self._indices(begun))
        except FlowError as error:
            raise located(error, self.spec) from error

    def _indices(self, keys: Collection[str]) -> list[int]:
        return [index for index, binding in enumerate(self.bindings) if binding.spec.input.state_key in keys]


def prepare(
    spec: MaterializationSpec,
    connector: Connector,
    stored: Mapping[str, Sequence[str]] | None = None,
    restart: ResetMarker | None = None,
) -> PreparedMaterialization:
    """Prepare a materialization.

    Args:
        spec: the materialization in the catalog.
        connector: connector of its endpoint.
        stored: for each binding (by state key), the fields materialized until now.
        restart: the last reset; None if there was none.

    Raises:
        CatalogError: the catalog conflicts with the connector; the error has all issues.
        FlowError: the connector does not answer or refuses, or a secret is missing.
    """
    config = spec.endpoint.config.reveal()
    try:
        schemas = connector.schemas()
    except FlowError as error:
        raise located(error, spec) from error
    issues = [*config_faults(spec, schemas, config), *resource_faults(spec, schemas)]
    if issues:
        raise CatalogError(issues)
    secrets = secrets_of(spec, config, schemas)
    bindings = _select(spec, lambda part: connector.validate(validate_request(part, config), secrets), stored or {})
    message = materialization_message(spec, config, bindings, _generations(spec, schemas, restart))
    prepared = tuple(
        PreparedBinding(binding, fields, validated.resource_path, validated.delta_updates)
        for binding, (validated, fields) in zip(spec.bindings, bindings, strict=True)
    )
    return PreparedMaterialization(spec, prepared, message, version_of(message, secrets), secrets)


def _select(
    spec: MaterializationSpec,
    validate: Callable[[MaterializationSpec], pb.ValidateResponse],
    stored: Mapping[str, Sequence[str]],
) -> list[tuple[ValidatedBinding, FieldSelection]]:
    """Return the connector's answer and the selected fields of each binding.

    Shadows are validated by themselves, because a connector refuses two bindings of one resource. A binding with a
    shadow keeps its stored fields: new columns are for the shadow.

    Raises:
        CatalogError: the catalog conflicts with the connector; the error has all issues.
        FlowError: the connector does not answer or refuses.
    """
    issues: list[Issue] = []
    bindings: list[tuple[ValidatedBinding, FieldSelection]] = []
    shadows = tuple(binding for binding in spec.bindings if binding.is_shadow)
    shadowed = {binding.name for binding in shadows}
    for part in (spec.live, *([replace(spec, bindings=shadows)] if shadows else [])):
        try:
            response = validate(part)
        except FlowError as error:
            raise located(error, spec) from error
        for binding, answer in zip(part.bindings, response.bindings, strict=True):
            validated, before = validated_binding(answer), stored.get(binding.input.state_key, ())
            fields = select_fields(
                binding.collection.key,
                binding.collection.projections,
                validated.constraints,
                binding.fields,
                before,
                validated.most_fields,
            )
            if not isinstance(fields, FieldSelection):
                issues += fields
                continue
            if not binding.is_shadow and binding.name in shadowed:
                fields = replace(fields, values=tuple(name for name in fields.values if name in before))
            bindings.append((validated, fields))
        issues += _shared_resources(part, response)
    if issues:
        raise CatalogError(issues)
    return bindings


def _generations(spec: MaterializationSpec, schemas: ConnectorSchemas, restart: ResetMarker | None) -> dict[str, str]:
    """Return the generation of each binding (by state key); empty if the connector cannot refill."""
    keys = [binding.input.state_key for binding in spec.bindings] if schemas.refills else []
    return {key: generation_of(key, restart or ResetMarker()) for key in keys}


def config_faults(spec: MaterializationSpec, schemas: ConnectorSchemas, config: JSON) -> Iterator[Issue]:
    """Yield the faults of the endpoint's configuration; `config` is the written or the resolved configuration."""
    at = spec.endpoint.config
    return faults(config, schemas.endpoint, "the configuration", "E708", at.positions, at.position)


def resource_faults(spec: MaterializationSpec, schemas: ConnectorSchemas) -> Iterator[Issue]:
    """Yield the faults of the bindings' resources."""
    for binding in spec.bindings:
        positions = binding.resource_positions
        position = positions.get("", binding.position)
        yield from faults(binding.resource, schemas.resource, "the resource", "E709", positions, position)


def secrets_of(spec: MaterializationSpec, config: JSON, schemas: ConnectorSchemas) -> frozenset[str]:
    """Return the texts to hide in all messages about a materialization."""
    return spec.endpoint.config.secrets().union(long_enough(marked_secrets(config, schemas.endpoint)))


def located(error: FlowError, spec: MaterializationSpec) -> FlowError:
    """Return an error of a connector with the position of the endpoint."""
    if error.position is not None or isinstance(error, CatalogError):
        return error
    return type(error)(f"'{spec.name}': {error.message}", position=spec.endpoint.position, hint=error.hint)


def _shared_resources(spec: MaterializationSpec, response: pb.ValidateResponse) -> Iterator[Issue]:
    """Yield an issue for each binding with the same resource path as an earlier one."""
    paths: dict[tuple[str, ...], BindingSpec] = {}
    for binding, message in zip(spec.bindings, response.bindings, strict=True):
        path = tuple(message.resource_path)
        first = paths.setdefault(path, binding)
        if first is not binding:
            text = f"'{'.'.join(path)}' is already the resource of another binding, at {first.position}"
            yield Issue("E703", text, binding.resource_positions.get("", binding.position))


_NOT_RUN, _NOT_ASKED, _CROWDED, _REFUSED = "N006", "N007", "N010", "E711"


Examine: TypeAlias = Callable[[PreparedMaterialization], Iterable[Issue]]
"""Function that returns further faults of a materialization whose bindings the connector has accepted."""


def check_materializations(
    specs: Iterable[MaterializationSpec], connectors: Connectors, examine: Examine = lambda prepared: ()
) -> list[Issue]:
    """Return faults of enabled materializations, and notes on checks that were impossible."""
    return [issue for spec in specs if not spec.disabled for issue in _check(spec, connectors, examine)]


def _check(spec: MaterializationSpec, connectors: Connectors, examine: Examine) -> Iterator[Issue]:
    missing = not_installed(spec.endpoint)
    if missing is not None:
        message, hint = missing
        yield Issue(_NOT_RUN, f"'{spec.name}' cannot run: {message}", spec.endpoint.position, hint)
        return
    try:
        connector = connectors.connect(spec.endpoint)
        schemas = connector.schemas()
    except FlowError as error:
        yield _note(spec, error)
        return
    try:
        spec.endpoint.config.reveal()
    except FlowError as error:
        yield _note(spec, error)
        unknown = {spec.endpoint.config.positions.get(pointer) for pointer in _referring(spec.endpoint.config.written)}
        faults = config_faults(spec, schemas, spec.endpoint.config.written)
        yield from (issue for issue in faults if issue.position not in unknown)
        yield from resource_faults(spec, schemas)
        return
    try:
        prepared = prepare(spec, connector)
        yield from _crowded(prepared)
        yield from examine(prepared)
    except CatalogError as error:
        yield from error.issues
    except EndpointGoneError as error:
        yield _note(spec, error)
    except FlowError as error:
        yield Issue(_REFUSED, error.message, error.position or spec.endpoint.position, error.hint)


def _crowded(prepared: PreparedMaterialization) -> Iterator[Issue]:
    """Yield a note for each binding that has more fields than the endpoint can store."""
    for binding in prepared.bindings:
        if binding.fields.left_out:
            message = f"'{binding.spec.name}' {show_left_out(binding.fields)}"
            hint = (
                "exclude fields that you do not need, or require fields that you need; the stored document has all"
                " values"
            )
            yield Issue(_CROWDED, message, binding.spec.position, hint)


def show_left_out(fields: FieldSelection) -> str:
    """Return a text about the fields without a column."""
    count, first = len(fields.left_out), fields.left_out[0]
    return (
        f"leaves out {counted(count, 'field')} (the first is '{first}'): the endpoint has room for"
        f" {counted(fields.most, 'field')}"
    )


def _note(spec: MaterializationSpec, error: FlowError) -> Issue:
    named = f"'{spec.name}'"
    message = error.message.removeprefix(f"{named}: ")
    return Issue(
        _NOT_ASKED, f"{named} is not fully checked: {message}", error.position or spec.endpoint.position, error.hint
    )


def _referring(value: JSON, pointer: str = "") -> Iterator[str]:
    """Yield the pointers of strings that contain references."""
    if isinstance(value, str) and references(value):
        yield pointer
    elif isinstance(value, dict):
        for name, member in value.items():
            yield from _referring(member, f"{pointer}/{escape(name)}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _referring(item, f"{pointer}/{index}")
