"""Plans of statements that clients send again and again: each is planned once while names stand for the same."""

from __future__ import annotations

from collections.abc import Sequence

from derive.adapter.objects import Objects
from derive.adapter.parser.remembering import MOST_CHARACTERS
from derive.adapter.preparing import Plan, plan

_MOST_PLANS = 1000


class Plans:
    """Plans of short statements, by text and types of parameters, for what names stood for last."""

    def __init__(self) -> None:
        self._objects: Objects | None = None
        self._plans: dict[tuple[str, tuple[int, ...]], Plan] = {}

    def plan(self, text: str, oids: Sequence[int], objects: Objects) -> Plan:
        """The plan of a statement, as of `derive.adapter.preparing.plan`; one that nobody changes."""
        if len(text) > MOST_CHARACTERS:
            return plan(text, oids, objects)
        if objects is not self._objects or len(self._plans) >= _MOST_PLANS:
            self._objects = objects
            self._plans.clear()
        key = text, tuple(oids)
        planned = self._plans.get(key)
        if planned is None:
            planned = self._plans[key] = plan(text, oids, objects)
        return planned
