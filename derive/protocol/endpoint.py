"""Endpoints: the connector of a materialization, and its configuration.

A configuration contains passwords. It is written with references, `${env:NAME}` and `${file:PATH}`, which are resolved
when a connector is started: a spec that is shown, compared or stored has no resolved values. Because passwords may be
written in clear nevertheless, the repr of a configuration is `***`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from derive.errors import TaskError
from derive.position import Position
from derive.protocol.collection import JSON
from derive.protocol.secrets import HIDDEN, escaped, reveal, secret_texts

ENCRYPTED = "sops"
"""Property of a configuration that was encrypted by the tool of this name."""


@dataclass(frozen=True, slots=True, repr=False)
class EndpointConfig:
    """The configuration of a connector.

    Attributes:
        written: the configuration as written, with references to secrets.
        url: URL of its file, the base of relative file names.
        position: position in the file.
        positions: position of each of its values, by JSON pointer.
        hidden: texts that are secrets besides those that `written` reveals.
    """

    written: JSON
    url: str
    position: Position
    positions: Mapping[str, Position] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return HIDDEN

    def reveal(self) -> JSON:
        """Return the configuration with resolved references, for the connector only.

        Raises:
            TaskError: a variable is not set, a file cannot be read, or the configuration is encrypted; with the
                position.
        """
        if isinstance(self.written, dict) and ENCRYPTED in self.written:
            hint = "decrypt it to a file that is not shared, or refer to its secrets by '${env:NAME}' or '${file:PATH}'"
            raise TaskError("this configuration is encrypted by sops", position=self.position, hint=hint)
        return reveal(self.written, self.url, self.positions, self.position)

    def revealed(self) -> EndpointConfig:
        """Return this configuration without references, for a process that has neither the variables nor the files.

        Raises:
            TaskError: as for `reveal`.
        """
        return replace(self, written=escaped(self.reveal()), hidden=self.secrets())

    def secrets(self) -> frozenset[str]:
        """Return texts to hide in a connector's messages: values of references, and values that look like secrets.

        References that cannot be resolved are skipped.
        """
        return self.hidden | secret_texts(self.written, self.url)


@dataclass(frozen=True, slots=True)
class ConnectorEndpoint:
    """A connector by its image.

    Attributes:
        image: image as written, such as `ghcr.io/someone/materialize-postgres:v1`.
        config: its configuration.
        position: position of the image.
    """

    image: str
    config: EndpointConfig
    position: Position

    @property
    def connector(self) -> str:
        """Return the image's name without registry, tag and digest: the name of an installed connector."""
        return self.image.partition("@")[0].rpartition("/")[2].partition(":")[0]


@dataclass(frozen=True, slots=True)
class LocalEndpoint:
    """A connector that is a local program, which prints its address when it is ready.

    Attributes:
        command: the program and its arguments.
        config: its configuration.
        position: position of the command.
        env: additional environment variables: an object of strings, which may be secrets.
        folder: working folder: that of the catalog's file.
    """

    command: tuple[str, ...]
    config: EndpointConfig
    position: Position
    env: EndpointConfig
    folder: str


@dataclass(frozen=True, slots=True)
class AddressEndpoint:
    """A connector that is already running.

    Attributes:
        address: `host:port`.
        config: its configuration.
        position: position of the address.
    """

    address: str
    config: EndpointConfig
    position: Position


EndpointSpec: TypeAlias = ConnectorEndpoint | LocalEndpoint | AddressEndpoint
"""The endpoint of a materialization."""
