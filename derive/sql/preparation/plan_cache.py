"""Plans of statements that clients send again and again: each is planned once while names stand for the same."""

from __future__ import annotations

from collections.abc import Sequence

from derive.recently_used import RecentlyUsed
from derive.sql.catalog.snapshot import Objects
from derive.sql.parser.text_cache import MOST_CHARACTERS
from derive.sql.preparation.prepare import Plan, plan

_MOST_PLANS = 1000


class Plans:
    """Plans of short statements, by version of the catalog, text and types of parameters.

    A transaction that has defined something has a version of its own, so its plans are beside those of others.
    """

    def __init__(self) -> None:
        self._plans: RecentlyUsed[tuple[int, str, tuple[int, ...]], Plan] = RecentlyUsed(_MOST_PLANS)

    def plan(self, text: str, oids: Sequence[int], objects: Objects) -> Plan:
        """The plan of a statement, as of `derive.sql.preparation.prepare.plan`; one that nobody changes."""
        if len(text) > MOST_CHARACTERS:
            return plan(text, oids, objects)
        key = objects.version, text, tuple(oids)
        return self._plans.get(key) or self._plans.put(key, plan(text, oids, objects))
