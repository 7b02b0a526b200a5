"""Endpoints: which connector a materialization talks to, and what that connector is configured with.

A configuration holds passwords. It is written with references to them, `${env:NAME}` and `${file:PATH}`, which stay as
they are until a connector is started: a spec that is shown, compared or stored holds none of what they stand for. As
passwords may be written in clear all the same, a configuration shows as `***`.
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
"""The property that a configuration has which was encrypted by the tool of this name."""


@dataclass(frozen=True, slots=True, repr=False)
class EndpointConfig:
    """What a connector is configured with.

    Attributes:
        written: as a person wrote it, with references in place of secrets.
        url: of the file where it is written, from where relative names of files begin.
        position: where it is written.
        positions: where each of its values is written, by JSON pointer.
        hidden: texts that are secrets, beside those that can be told by what is written.
    """

    written: JSON
    url: str
    position: Position
    positions: Mapping[str, Position] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return HIDDEN

    def reveal(self) -> JSON:
        """The configuration, with what its references stand for. Nobody but the connector is to see it.

        Raises:
            TaskError: a variable is not set, or a file cannot be read; it says where that is written. Or all of it is
                encrypted.
        """
        if isinstance(self.written, dict) and ENCRYPTED in self.written:
            hint = "decrypt it to a file that is not shared, or refer to its secrets by '${env:NAME}' or '${file:PATH}'"
            raise TaskError("this configuration is encrypted by sops", position=self.position, hint=hint)
        return reveal(self.written, self.url, self.positions, self.position)

    def revealed(self) -> EndpointConfig:
        """This configuration without references, for a process that has neither the variables nor the files.

        Raises:
            TaskError: as `reveal`.
        """
        return replace(self, written=escaped(self.reveal()), hidden=self.secrets())

    def secrets(self) -> frozenset[str]:
        """Texts to be hidden from what a connector says: all that references stand for, and what looks like a secret.

        What cannot be revealed is no secret.
        """
        return self.hidden | secret_texts(self.written, self.url)


@dataclass(frozen=True, slots=True)
class ConnectorEndpoint:
    """A connector by its image.

    Attributes:
        image: as a person wrote it, such as `ghcr.io/someone/materialize-postgres:v1`.
        config: what it is configured with.
        position: where the image is written.
    """

    image: str
    config: EndpointConfig
    position: Position

    @property
    def connector(self) -> str:
        """The image's name without registry, tag and digest, which is how connectors are installed."""
        return self.image.partition("@")[0].rpartition("/")[2].partition(":")[0]


@dataclass(frozen=True, slots=True)
class LocalEndpoint:
    """A connector that is a program, which prints its address when it is ready.

    Attributes:
        command: the program and its arguments.
        config: what it is configured with.
        position: where the command is written.
        env: variables of its environment, beside our own; an object of strings, which may be secrets.
        folder: where it runs: that of the catalog's file.
    """

    command: tuple[str, ...]
    config: EndpointConfig
    position: Position
    env: EndpointConfig
    folder: str


@dataclass(frozen=True, slots=True)
class AddressEndpoint:
    """A connector that is running already.

    Attributes:
        address: `host:port`.
        config: what it is configured with.
        position: where the address is written.
    """

    address: str
    config: EndpointConfig
    position: Position


EndpointSpec: TypeAlias = ConnectorEndpoint | LocalEndpoint | AddressEndpoint
"""What a materialization talks to."""
