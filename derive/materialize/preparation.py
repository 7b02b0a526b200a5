"""Preparation: from what a catalog says of a materialization to what its connector is told, by way of its answers.

The connector says what it can be configured with (Spec) and what it asks of fields (Validate); the configuration and
the author's choice of fields are held against that. Whatever does not fit is an issue at its place in the catalog.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from derive.errors import CatalogError, FlowError, Issue
from derive.materialize.connector import Connector
from derive.materialize.fields import FieldSelection, select_fields
from derive.materialize.messages import (
    ValidatedBinding,
    materialization_message,
    validate_request,
    validated_binding,
    version_of,
)
from derive.materialize.schemas import ConnectorSchemas, faults, marked_secrets
from derive.protocol.secrets import worth_hiding
from derive.protocol.specs import JSON, BindingSpec, MaterializationSpec
from derive.protocol.stubs import flow_pb2 as flow
from derive.protocol.stubs import materialize_pb2 as pb


@dataclass(frozen=True, slots=True)
class PreparedBinding:
    """A binding, with all that is decided of it.

    Attributes:
        spec: as the catalog has it.
        fields: which are materialized.
        resource_path: where in the endpoint it goes.
        delta_updates: whether documents are stored without those of before being loaded.
    """

    spec: BindingSpec
    fields: FieldSelection
    resource_path: tuple[str, ...]
    delta_updates: bool


@dataclass(frozen=True, slots=True)
class PreparedMaterialization:
    """A materialization that its connector has agreed to.

    Attributes:
        spec: as the catalog has it.
        bindings: in the same order.
        message: what the connector is told. It holds secrets, and shows as nothing.
        version: another for every change.
        secrets: texts that are to be hidden.
    """

    spec: MaterializationSpec
    bindings: tuple[PreparedBinding, ...]
    message: flow.MaterializationSpec = field(repr=False)
    version: str
    secrets: frozenset[str] = field(repr=False)

    def apply(self, connector: Connector, *, dry_run: bool = False, begun: Collection[str] = ()) -> str:
        """Make the endpoint ready, or find out what that takes.

        Args:
            connector: of the endpoint.
            dry_run: whether to find out only.
            begun: state keys of bindings of which something was stored before.

        Returns:
            What was done or would be, for people; empty if that is nothing.

        Raises:
            FlowError: it cannot be done.
        """
        request = pb.ApplyRequest(materialization=self.message, version=self.version, dry_run=dry_run)
        try:
            indices = [index for index, one in enumerate(self.bindings) if one.spec.input.state_key in begun]
            return connector.apply(request, self.secrets, indices)
        except FlowError as error:
            raise located(error, self.spec) from error


def prepare(
    spec: MaterializationSpec, connector: Connector, stored: Mapping[str, Sequence[str]] | None = None
) -> PreparedMaterialization:
    """Prepare a materialization.

    Args:
        spec: what the catalog says.
        connector: that of its endpoint.
        stored: for each binding (by state key), the fields that were materialized until now.

    Raises:
        CatalogError: with everything that does not fit.
        FlowError: the connector does not answer or refuses, or a secret is not there.
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
    try:
        response = connector.validate(validate_request(spec, config), secrets)
    except FlowError as error:
        raise located(error, spec) from error
    bindings: list[tuple[ValidatedBinding, FieldSelection]] = []
    for binding, answer in zip(spec.bindings, response.bindings, strict=True):
        validated = validated_binding(answer)
        collection = binding.collection
        fields = select_fields(
            collection.key,
            collection.projections,
            validated.constraints,
            binding.fields,
            (stored or {}).get(binding.input.state_key, ()),
            validated.most_fields,
        )
        if isinstance(fields, FieldSelection):
            bindings.append((validated, fields))
        else:
            issues += fields
    issues += _shared_resources(spec, response)
    if issues:
        raise CatalogError(issues)
    message = materialization_message(spec, config, bindings)
    prepared = tuple(
        PreparedBinding(binding, fields, validated.resource_path, validated.delta_updates)
        for binding, (validated, fields) in zip(spec.bindings, bindings, strict=True)
    )
    return PreparedMaterialization(spec, prepared, message, version_of(message, secrets), secrets)


def config_faults(spec: MaterializationSpec, schemas: ConnectorSchemas, config: JSON) -> Iterator[Issue]:
    """What is wrong with the endpoint's configuration, of which `config` is what was written or stands for it."""
    at = spec.endpoint.config
    return faults(config, schemas.endpoint, "the configuration", "E708", at.positions, at.position)


def resource_faults(spec: MaterializationSpec, schemas: ConnectorSchemas) -> Iterator[Issue]:
    """What is wrong with what the bindings say of their resources."""
    for binding in spec.bindings:
        positions = binding.resource_positions
        position = positions.get("", binding.position)
        yield from faults(binding.resource, schemas.resource, "the resource", "E709", positions, position)


def secrets_of(spec: MaterializationSpec, config: JSON, schemas: ConnectorSchemas) -> frozenset[str]:
    """Texts to be hidden in whatever is said of a materialization."""
    return spec.endpoint.config.secrets().union(worth_hiding(marked_secrets(config, schemas.endpoint)))


def located(error: FlowError, spec: MaterializationSpec) -> FlowError:
    """An error that a connector has told, with where the endpoint is written."""
    if error.position is not None or isinstance(error, CatalogError):
        return error
    return type(error)(f"'{spec.name}': {error.message}", position=spec.endpoint.position, hint=error.hint)


def _shared_resources(spec: MaterializationSpec, response: pb.ValidateResponse) -> Iterator[Issue]:
    """Bindings of which the connector says that they go to the same place."""
    paths: dict[tuple[str, ...], BindingSpec] = {}
    for binding, message in zip(spec.bindings, response.bindings, strict=True):
        path = tuple(message.resource_path)
        first = paths.setdefault(path, binding)
        if first is not binding:
            text = f"'{'.'.join(path)}' is what another binding goes to already, at {first.position}"
            yield Issue("E703", text, binding.resource_positions.get("", binding.position))
