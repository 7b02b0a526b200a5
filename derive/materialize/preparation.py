"""Preparation: from the catalog's materialization to the message for its connector, by the connector's answers.

The connector returns its configuration schemas (Spec) and its constraints of fields (Validate); the configuration and
the author's choice of fields are checked against these. Every conflict is an issue at its position in the catalog.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from connectors.kit.requests import Applied
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
from derive.materialize.reset_marker import ResetMarker, generation_of
from derive.materialize.schemas import ConnectorSchemas, faults, marked_secrets
from derive.protocol.secrets import long_enough
from derive.protocol.specs import JSON, BindingSpec, MaterializationSpec
from derive.protocol.stubs import flow_pb2 as flow
from derive.protocol.stubs import materialize_pb2 as pb


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
    ) -> Applied:
        """Prepare the endpoint, or return the needed actions of a dry run.

        Args:
            connector: connector of the endpoint.
            dry_run: whether nothing is changed.
            begun: state keys of bindings with documents at the endpoint.
            completed: identities of refills that replace rows; with any, nothing else is done.

        Raises:
            FlowError: the endpoint cannot be prepared.
        """
        request = pb.ApplyRequest(
            materialization=self.message, version=self.version, dry_run=dry_run, completed=completed
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
    message = materialization_message(spec, config, bindings, _generations(spec, schemas, restart))
    prepared = tuple(
        PreparedBinding(binding, fields, validated.resource_path, validated.delta_updates)
        for binding, (validated, fields) in zip(spec.bindings, bindings, strict=True)
    )
    return PreparedMaterialization(spec, prepared, message, version_of(message, secrets), secrets)


def _generations(spec: MaterializationSpec, schemas: ConnectorSchemas, restart: ResetMarker | None) -> dict[str, str]:
    """Return the generation of each binding (by state key); empty if the connector does not refill."""
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
            text = f"'{'.'.join(path)}' is what another binding goes to already, at {first.position}"
            yield Issue("E703", text, binding.resource_positions.get("", binding.position))
