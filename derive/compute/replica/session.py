"""A connection of a controller to an instance, and the check of controllers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from derive.compute.protocol.messages import PROTOCOL, Hello, Response
from derive.errors import ProtocolError


class Session(Protocol):
    """A connection of a controller."""

    def send(self, response: Response) -> None:
        """Send a response; do nothing if the connection is gone."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of an instance.

    Attributes:
        process: identifier of the process.
        folder: identifier of the data folder.
    """

    process: str
    folder: str = ""


def check_hello(hello: Hello, folder: str) -> None:
    """Refuse an unsuitable controller before it can drop dataflows.

    Args:
        hello: first message of the controller.
        folder: identifier of the instance's data folder.

    Raises:
        ProtocolError: the controller speaks another protocol, or belongs to another data folder.
    """
    if hello.protocol != PROTOCOL:
        raise ProtocolError(
            f"the instance speaks {PROTOCOL}, and not {hello.protocol}", hint="use the same release at both ends"
        )
    if hello.folder != folder:
        raise ProtocolError("the instance is over another data folder", hint="start it with --data of this one")
