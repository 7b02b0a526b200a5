"""Validation of configurations against a connector's schemas. Errors do not show values."""

from __future__ import annotations

from collections.abc import Iterable

import jsonschema_rs

from connectors.kit.requests import ConnectorSpec
from derive.document.pointer import escape
from derive.errors import UsageError
from derive.protocol.specs import JSON


class ConfigurationCheck:
    """Validates the configurations of a connector.

    Attributes:
        connector: name of the connector, for messages.
    """

    def __init__(self, connector: str, spec: ConnectorSpec) -> None:
        self.connector = connector
        self._endpoint = _compile(spec.endpoint_schema)
        self._resource = _compile(spec.resource_schema)

    def check(self, config: JSON, resources: Iterable[JSON]) -> None:
        """Validate the configuration of an endpoint, and those of bindings.

        Raises:
            UsageError: a configuration fails its schema.
        """
        _check(self._endpoint, config, f"the endpoint's configuration of {self.connector}")
        for index, resource in enumerate(resources):
            _check(self._resource, resource, f"the resource of binding {index} of {self.connector}")


def _compile(schema: JSON) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(schema, mask="the value")


def _check(validator: jsonschema_rs.Draft202012Validator, value: JSON, what: str) -> None:
    faults = [
        f"{error.message}" + (f" at '{pointer}'" if pointer else "")
        for error in validator.iter_errors(value)
        for pointer in ["".join(f"/{escape(str(token))}" for token in error.instance_path)]
    ]
    if faults:
        raise UsageError(f"{what} is not what it must be: {'; '.join(faults)}")
