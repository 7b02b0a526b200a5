"""When the steps of a test take place, and what is said of steps that cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import write_catalog

from derive.catalog import load
from derive.catalog.build import check_catalog
from derive.document.clock import parse_rfc3339
from derive.protocol.specs import TestSpec

SECOND, MINUTE, HOUR = 1_000_000, 60_000_000, 3_600_000_000
BEGIN = 1_704_067_200_000_000

CATALOG = """\
collections:
  t/source:
    schema: &schema {type: object, required: [id], properties: {id: {type: integer}}}
    key: &key [/id]
  t/one:
    schema: *schema
    key: *key
    derive:
      using: {sqlite: {}}
      transforms: [{name: pass, source: t/source, shuffle: any, lambda: SELECT $id;}]
  t/five:
    schema: *schema
    key: *key
    derive:
      using: {sqlite: {}}
      shards: {maxTxnDuration: 5m}
      transforms: [{name: pass, source: t/one, shuffle: any, lambda: SELECT $id;}]
tests:
  t/test:
"""


def step(what: str, collection: str = "t/source", **more: str) -> str:
    fields = "".join(f", {name}: {value}" for name, value in more.items())
    return f"{what}: {{collection: {collection}, documents: []{fields}}}"


INGEST, VERIFY = step("ingest"), step("verify", "t/one")


def written(steps: list[str]) -> str:
    return CATALOG + "".join(f"    - {each}\n" for each in steps)


def scheduled(folder: Path, steps: list[str]) -> TestSpec:
    return load(write_catalog(folder, written(steps))).tests["t/test"]


@pytest.mark.parametrize(
    ("steps", "moments", "end"),
    [
        # offsets count from the beginning, `advance` from the present; what is verified is known at the end of a tick
        ([INGEST, "advance: 20m", VERIFY, "advance: 11m", step("ingest", at="+40m"), VERIFY],
         [(0, 0), (20 * MINUTE, 20 * MINUTE), (20 * MINUTE, 20 * MINUTE + SECOND), (31 * MINUTE, 31 * MINUTE),
          (40 * MINUTE, 40 * MINUTE), (40 * MINUTE, 40 * MINUTE + SECOND)], 40 * MINUTE + SECOND),
        # a step that does not say when comes next: now, or when the tick is over that a verify step has let end
        ([step("ingest", at="+1s 200ms"), INGEST, VERIFY, INGEST, VERIFY],
         [(1_200_000, 1_200_000)] * 2 + [(1_200_000, 2 * SECOND), (2 * SECOND, 2 * SECOND), (2 * SECOND, 3 * SECOND)], 3 * SECOND),
        # time that passes within a tick that is over
        ([INGEST, VERIFY, "advance: 500ms", VERIFY, "advance: 500ms"],
         [(0, 0), (0, SECOND), (SECOND // 2, SECOND), (SECOND // 2, SECOND), (SECOND, SECOND)], 2 * SECOND),
        # the longest tick of what the collection follows from
        ([step("ingest", at="+1m"), VERIFY, step("verify", "t/five"), step("verify")],
         [(MINUTE, MINUTE), (MINUTE, MINUTE + SECOND), (MINUTE, 5 * MINUTE), (MINUTE, 5 * MINUTE)], 5 * MINUTE),
        # nothing has to be derived for what is ingested
        ([INGEST, "advance: 1m", step("verify")], [(0, 0), (MINUTE, MINUTE), (MINUTE, MINUTE)], MINUTE),
        # where nothing is verified, all take part
        ([step("ingest", at="+0s")], [(0, 0)], 5 * MINUTE),
    ],
)  # fmt: skip
def test_schedule_times_are_computed(
    steps: list[str], moments: list[tuple[int, int]], end: int, tmp_path: Path
) -> None:
    test = scheduled(tmp_path, steps)

    found = [each.time for each in test.steps if each.time]
    assert [(each.present - BEGIN, each.wall - BEGIN) for each in found] == moments
    assert (test.begin, test.end) == (BEGIN, BEGIN + end)


def test_a_test_begins_at_the_time_of_its_first_documents(tmp_path: Path) -> None:
    steps = [step("ingest", at="2013-07-01T09:00:00+02:00"), step("ingest", at="+20m"), "advance: 1m"]
    test = scheduled(tmp_path, [VERIFY, *steps])

    begin = parse_rfc3339("2013-07-01T07:00:00Z")
    assert test.begin == begin
    assert [each.time and each.time.present - begin for each in test.steps] == [0, 0, 20 * MINUTE, 21 * MINUTE]


def test_test_without_times_has_no_schedule(tmp_path: Path) -> None:
    test = scheduled(tmp_path, [INGEST, VERIFY])

    assert [each.time for each in test.steps] == [None, None]
    assert (test.begin, test.end) == (BEGIN, None)


@pytest.mark.parametrize(
    ("steps", "issue"),
    [
        # what is no time
        ([step("ingest", at="20m")],
         ("E605", 20, 57, "'at' is neither an RFC 3339 time nor an offset from the beginning of the test: '20m'", "did you mean '+20m'?")),
        ([step("ingest", at="2024-02-30T00:00:00Z")],
         ("E605", 20, 57, "'at' is neither an RFC 3339 time nor an offset from the beginning of the test: '2024-02-30T00:00:00Z'",
          "such as '2024-05-01T09:00:00Z' or '+20m'")),
        ([step("ingest", at="2024-02-28")],
         ("E605", 20, 57, "'at' is neither an RFC 3339 time nor an offset from the beginning of the test: '2024-02-28'",
          "such as '2024-05-01T09:00:00Z' or '+20m'")),
        ([step("ingest", at="-5m")],
         ("E605", 20, 57, "'at' is neither an RFC 3339 time nor an offset from the beginning of the test: '-5m'",
          "such as '2024-05-01T09:00:00Z' or '+20m'")),
        ([step("ingest", at="20")], ("E010", 20, 57, "'at' must be a string", None)),
        ([INGEST, "advance: soon"],
         ("E013", 21, 16, "'advance' is not a duration longer than 0s, such as '1s' or '5m': 'soon'", None)),
        ([INGEST, "advance: 0s"],
         ("E013", 21, 16, "'advance' is not a duration longer than 0s, such as '1s' or '5m': '0s'", None)),
        ([INGEST, "advance: 5"], ("E013", 21, 16, "'advance' is not a duration longer than 0s, such as '1s' or '5m': 5", None)),
        # only an ingest step has a time of its own
        ([INGEST, step("verify", at="+1m")],
         ("E011", 21, 53, "'verify' has no property 'at'", "known: collection, description, documents, partitions")),
        ([INGEST, "wait: 5m"], ("E011", 21, 7, "a step has no property 'wait'", "known: advance, ingest, verify")),
        # time passes when there is something for it to pass for
        (["advance: 31m", INGEST],
         ("E606", 20, 16, "the test advances time before its first ingest step",
          "give the documents of the first ingest step a time, such as 'at: +31m'")),
        # time goes forward
        ([step("ingest", at="+20m"), "advance: 10m", step("ingest", at="+25m")],
         ("E607", 22, 57, "time cannot go back: 'at' is +25m, but the test is at +30m already",
          "offsets count from the beginning of the test")),
        ([INGEST, step("ingest", at="2013-07-01T09:00:00Z")],
         ("E607", 21, 57, "time cannot go back: 'at' is 2013-07-01T09:00:00Z, but the test is at 2024-01-01T00:00:00.000000Z already",
          "a test begins at the time of its first ingest step, or at 2024-01-01T00:00:00Z if that step has no time")),
        ([step("ingest", at="+20m"), VERIFY, step("ingest", at="+20m")],
         ("E607", 22, 57, "time cannot go back: 'at' is +20m, but contents were verified at +20m 1s",
          "ingest before the verify step, or from +20m 1s on")),
        # and not out of the calendar
        ([step("ingest", at="1969-12-31T23:59:59Z")],
         ("E608", 20, 57, "times of a test are in the years 1970 to 9998, and 1969-12-31T23:59:59Z is not", None)),
        ([INGEST, "advance: 999999999w"],
         ("E608", 21, 16, "times of a test are in the years 1970 to 9998, and 999999999w is not", None)),
    ],
)  # fmt: skip
def test_impossible_steps_are_reported(
    steps: list[str], issue: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    issues = check_catalog(write_catalog(tmp_path, written(steps)).name).issues

    assert [(each.code, each.position.line, each.position.column, each.message, each.hint) for each in issues] == [
        issue
    ]
