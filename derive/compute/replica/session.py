"""A connection of a controller to an instance, and which controllers an instance listens to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from derive.compute.protocol.messages import PROTOCOL, Hello, Response
from derive.errors import ProtocolError


class Session(Protocol):
    """A connection of a controller."""

    def send(self, response: Response) -> None:
        """Send a response; nothing if the connection is gone."""

    def close(self) -> None:
        """Close the connection out."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which instance this is.

    Attributes:
        process: tells its process from others.
        folder: identifies the data folder.
    """

    process: str
    folder: str = ""


def check_hello(hello: Hello, folder: str) -> None:
    """Refuse a controller before it can have anything dropped.

    Args:
        hello: of the controller.
        folder: identifies the data folder of the instance.

    Raises:
        ProtocolError: it speaks another protocol, or is of another data folder.
    """
    if hello.protocol != PROTOCOL:
        raise ProtocolError(
            f"the instance speaks {PROTOCOL}, and not {hello.protocol}", hint="use the same release at both ends"
        )
    if hello.folder != folder:
        raise ProtocolError("the instance is over another data folder", hint="start it with --data of this one")
