"""The example with state in TypeScript: a few lines of Python agree, whatever the shards and however it is cut up."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from conftest import World
from example_script import EXAMPLES

from derive.catalog import load
from derive.protocol.specs import Document

pytestmark = pytest.mark.deno

MINUTES = [0, 5, 29, 60, 61, 120, 149, 151, 181, 182, 240, 300, 330, 331]
LAST = 1_800_000_000_000_000
"""Microseconds: long after every click."""
USERS = ["ann", "ben", "constructor", "ann", "__proto__"]


def clicks() -> list[Document]:
    begin = datetime(2024, 5, 1, tzinfo=UTC)
    times = [begin + timedelta(minutes=minute, seconds=place) for minute in MINUTES for place in range(len(USERS))]
    return [
        {"id": place, "user": USERS[place * 7 % 5], "page": f"/{place % 3}", "at": time.strftime("%Y-%m-%dT%H:%M:%SZ")}
        for place, time in enumerate(times)
    ]


def time_of(document: Document) -> int:
    return int(datetime.fromisoformat(document["at"]).timestamp() * 1e6)


def expected(documents: list[Document]) -> dict[tuple[str, int], list[str]]:
    """By user and session, the pages: all clicks at once, in a plain loop."""
    last: dict[str, tuple[int, datetime]] = {}
    pages: dict[tuple[str, int], list[str]] = {}
    for each in documents:
        time = datetime.fromisoformat(each["at"])
        session, before = last.get(each["user"], (1, time))
        session += time - before > timedelta(minutes=30)
        last[each["user"]] = session, time
        pages.setdefault((each["user"], session), []).append(each["page"])
    return pages


def test_sessions_equal_a_plain_loop_for_any_number_of_parts_and_shards(tmp_path: Path) -> None:
    catalog = load(EXAMPLES / "sessions/flow.yaml")
    documents = clicks()
    found = []
    for shards, pieces in ((1, 1), (1, 7), (3, 4)):
        world = World(tmp_path / f"{shards}-{pieces}", catalog)
        size = -(-len(documents) // pieces)
        for place in range(0, len(documents), size):
            world.wall = LAST if place + size >= len(documents) else time_of(documents[place + size])
            world.ingest("sessions/clicks", documents[place : place + size])
            world.step(shards=shards)
        found.append(world.rows("sessions/sessions"))
    pages: dict[tuple[str, int], list[str]] = {}
    for *_, text in found[0]:
        document = json.loads(text)
        pages.setdefault((document["user"], document["session"]), []).extend(document["pages"])
    assert pages == expected(documents)
    assert len(pages) > 12
    assert found[1] == found[0]
    assert found[2] == found[0]
