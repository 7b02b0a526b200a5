"""The law of tests that tell time, over random catalogs and random steps: a verify step shows what a real run has
published whose wall clock has come to the end of the tick, whatever was verified or ingested on the way."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from conftest import World, write_catalog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_catalogs import BASE, SECOND, SOURCE, catalogs, histories

from derive.catalog import load
from derive.document.clock import format_duration, format_rfc3339
from derive.protocol.specs import Document, IngestStep, TestStep, VerifyStep
from derive.storage.contents import ReadOptions, contents_in_memory, read_rows
from derive.testing.driver import run_tests

EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "15"))
"""How many tests the law is tried on; more than a few dozen are for a night."""

SLOW = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))

TICKS = {"500ms": SECOND // 2, "1s": SECOND, "2s": 2 * SECOND}
PASSING = [1, SECOND - 1, SECOND // 2, SECOND, 3 * SECOND, 5 * SECOND, 61 * SECOND]


class Steps:
    """Steps of a test being drawn, and what time it is meanwhile."""

    def __init__(self, collections: Any) -> None:
        self.collections = collections
        self.steps: list[Any] = []
        self.present = self.wall = BASE
        self.free = 0
        self.walls: list[int] = []

    def ingest(self, documents: Sequence[Document], passed: int | None, *, as_offset: bool) -> None:
        """At a time of its own, if one is told that much later than the earliest possible."""
        step = {"collection": SOURCE, "documents": documents}
        self.present = self.wall = self.wall + (passed or 0)
        if passed is not None:
            offset = f"+{format_duration(self.present - BASE)}"
            step["at"] = offset if as_offset else format_rfc3339(self.present)
        self.free = max(self.wall, self.free) + len(documents)
        self._add({"ingest": step})

    def advance(self, passed: int) -> None:
        self.present += passed
        self.wall = max(self.wall, self.present)
        self._add({"advance": format_duration(passed)})

    def verify(self, name: str) -> None:
        tick = self._tick(name, set())
        if tick and self.free:
            self.wall = max(self.wall, (max(self.present, self.free - 1) // tick + 1) * tick)
        self._add({"verify": {"collection": name, "documents": []}})

    def _add(self, step: Any) -> None:
        self.steps.append(step)
        self.walls.append(self.wall)

    def _tick(self, name: str, seen: set[str]) -> int:
        """The longest tick upstream, of which all shorter ones are parts."""
        derive = self.collections[name].get("derive")
        if derive is None or name in seen:
            return 0
        seen.add(name)
        sources = [self._tick(each["source"]["name"], seen) for each in derive["transforms"]]
        return max([TICKS[derive["shards"]["maxTxnDuration"]], *sources])


@st.composite
def timed_tests(draw: st.DrawFn) -> tuple[str, list[int]]:
    """A catalog with one test, and where the wall clock has come to with each of its steps."""
    catalog = json.loads(draw(catalogs()))
    steps = Steps(catalog["collections"])
    names = sorted(set(catalog["collections"]) - {SOURCE})
    ahead = draw(histories())
    begin = draw(st.integers(0, len(ahead)))
    steps.ingest(ahead[:begin], 0, as_offset=False)
    ahead = ahead[begin:]
    for what in draw(st.lists(st.sampled_from(["ingest", "ingest", "advance", "verify"]), max_size=8)):
        if what == "ingest":
            count = draw(st.integers(0, len(ahead)))
            steps.ingest(ahead[:count], draw(st.none() | st.sampled_from([0, *PASSING])), as_offset=draw(st.booleans()))
            ahead = ahead[count:]
        elif what == "advance":
            steps.advance(draw(st.sampled_from(PASSING)))
        else:
            steps.verify(draw(st.sampled_from([*names, SOURCE])))
    for name in names:
        steps.verify(name)
    return json.dumps(catalog | {"tests": {"t/test": steps.steps}}), steps.walls


def published(world: World, steps: Sequence[TestStep], walls: Sequence[int], step: VerifyStep) -> tuple[Document, ...]:
    """What a run publishes that begins when the wall clock is where it is at a verify step: one transaction."""
    for each, wall in zip(steps, walls, strict=True):
        world.wall = wall
        if isinstance(each, IngestStep):
            world.ingest(each.collection, each.documents, clock=None)
    world.step(shards=1)
    spec = world.catalog.collections[step.collection]
    rows = read_rows(world.store, spec, ReadOptions())
    found = tuple(document for _, document in contents_in_memory(spec, rows))
    world.store.close()
    return found


@SLOW
@given(drawn=timed_tests())
def test_a_timed_test_verifies_what_a_run_at_its_time_publishes(drawn: tuple[str, list[int]]) -> None:
    text, walls = drawn
    with tempfile.TemporaryDirectory() as folder:
        catalog = load(write_catalog(Path(folder), text))
        test = catalog.tests["t/test"]
        assert [each.time and each.time.wall for each in test.steps] == walls
        steps = list(test.steps)
        for place, step in enumerate(test.steps):
            if isinstance(step, VerifyStep):
                world = World(Path(folder) / f"at{place}", catalog)
                told = published(world, test.steps[: place + 1], walls[: place + 1], step)
                steps[place] = replace(step, documents=told)

        told_catalog = replace(catalog, tests={"t/test": replace(test, steps=tuple(steps))})
        [result] = run_tests(told_catalog, strict=True)

    assert result.failure is None, result.failure
