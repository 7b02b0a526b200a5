"""The order of messages on a stream of transactions.

Both sides keep a `StreamOrder`: each side records the messages that it has received, and messages before it sends them.
A message out of order is an error that names the state and the message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal, TypeAlias

from derive.errors import ProtocolError

Request: TypeAlias = Literal["open", "load", "prepare", "store", "commit"]
Response: TypeAlias = Literal["opened", "loaded", "prepared", "committed"]

_REQUESTS: Mapping[str, Mapping[str, str]] = {
    "before Open": {"open": "loading"},
    "loading": {"load": "loading", "prepare": "storing"},
    "storing": {"store": "storing", "commit": "loading"},
}
_RESPONSES: Mapping[str, Mapping[str, str]] = {
    "before Opened": {"opened": "loading"},
    "loading": {"loaded": "loading", "prepared": "committing"},
    "committing": {"committed": "loading"},
}
"""Permitted messages of each state, with the following state."""

_ANSWERED: Mapping[str, str] = {"opened": "open", "prepared": "prepare", "committed": "commit"}
_AWAITED: Mapping[str, str] = {"load": "opened", "prepare": "opened", "store": "prepared", "commit": "prepared"}
"""For each request, the response that must have arrived before it."""


class StreamOrder:
    """The progress of both directions of one stream.

    Two threads may use an instance, one for each direction.
    """

    def __init__(self) -> None:
        self._requesting, self._responding = "before Open", "before Opened"
        self._counts: Counter[str] = Counter()
        self._loads: Counter[int] = Counter()

    @property
    def is_storing(self) -> bool:
        """Return true if a transaction has been prepared, and not committed."""
        return self._requesting == "storing"

    def request(self, message: Request) -> None:
        """Record a message from the runtime to the connector.

        Raises:
            ProtocolError: the message is out of order.
        """
        self._requesting = _step(_REQUESTS, self._requesting, message)
        awaited = _AWAITED.get(message)
        if awaited and self._counts[awaited] < self._counts[_ANSWERED[awaited]]:
            raise ProtocolError(f"{message.title()} was sent before {awaited.title()} arrived")
        self._counts[message] += 1
        if message == "load":
            self._loads[self._counts["prepare"]] += 1

    def response(self, message: Response) -> None:
        """Record a message from the connector to the runtime.

        Raises:
            ProtocolError: the message is out of order.
        """
        self._responding = _step(_RESPONSES, self._responding, message)
        if message == "loaded":
            if not self._loads[self._counts["prepared"]]:
                raise ProtocolError("the connector sent Loaded in a transaction without Load")
            return
        asked = _ANSWERED[message]
        if self._counts[message] >= self._counts[asked]:
            raise ProtocolError(f"{message.title()} was sent without {asked.title()}")
        if message == "prepared":
            self._loads.pop(self._counts["prepared"], None)
        self._counts[message] += 1


def _step(table: Mapping[str, Mapping[str, str]], state: str, message: str) -> str:
    following = table[state].get(message)
    if following is None:
        expected = " or ".join(name.title() for name in table[state])
        raise ProtocolError(f"{message.title()} is not expected: the stream is {state}, which allows {expected}")
    return following
