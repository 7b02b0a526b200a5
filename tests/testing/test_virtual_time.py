"""Tests that tell time: what is published by then, what takes part, and what is said where something fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import write_catalog

from derive.catalog import load
from derive.catalog.graph import tasks_of
from derive.cli.main import flowctl
from derive.errors import TaskError
from derive.storage.ingest import Ingestion
from derive.testing import Failure, VirtualTime, run_tests

CATALOG = """\
collections:
  t/source: {schema: &schema {type: object, required: [id], properties: {id: {type: integer}, at: {type: string}}}, key: &key [/id]}
  t/alerts:
    schema: *schema
    key: *key
    derive:
      using: {sqlite: {}}
      transforms: [{name: hourLater, source: t/source, shuffle: any, readDelay: 1h, lambda: "SELECT $id, time('now') AS at;"}]
  t/relayed:
    schema: *schema
    key: *key
    derive: {using: {sqlite: {}}, transforms: [{name: relay, source: t/alerts, shuffle: any, readDelay: 1m, lambda: SELECT $id;}]}
  t/picky:
    schema: *schema
    key: *key
    derive: {using: {sqlite: {}}, transforms: [{name: refuse, source: t/source, shuffle: any, lambda: "SELECT $id WHERE json('no');"}]}
  t/seven:
    schema: *schema
    key: *key
    derive:
      using: {sqlite: {}}
      shards: {maxTxnDuration: 7s}
      transforms: [{name: pass, source: t/source, shuffle: any, lambda: SELECT $id;}]
  t/five:
    schema: *schema
    key: *key
    derive:
      using: {sqlite: {}}
      shards: {maxTxnDuration: 5s}
      transforms: [{name: pass, source: t/seven, shuffle: any, lambda: SELECT $id;}]
  t/endless:
    schema: *schema
    key: *key
    derive:
      using: {sqlite: {}}
      transforms:
        - {name: begin, source: t/source, shuffle: any, lambda: SELECT $id;}
        - {name: again, source: t/endless, shuffle: any, lambda: SELECT $id + 1 AS id;}
  t/ranked:
    schema: *schema
    key: *key
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE late (id INTEGER PRIMARY KEY);"]}}
      transforms:
        - name: look
          source: t/source
          shuffle: {key: [/id]}
          readDelay: 1h
          lambda: SELECT $id, iif(EXISTS (SELECT 1 FROM late WHERE id = $id), 'late', 'in time') AS at;
        - {name: note, source: t/source, shuffle: {key: [/id]}, readDelay: 2h, priority: 1, lambda: INSERT INTO late VALUES ($id);}
tests:
  t/test:
"""
ONE = "ingest: {collection: t/source, documents: [{id: 1}]}"


def ingest(at: str, *ids: int) -> str:
    documents = ", ".join(f"{{id: {each}}}" for each in ids)
    return f"ingest: {{collection: t/source, at: {at}, documents: [{documents}]}}"


def verify(collection: str, *documents: str) -> str:
    return f"verify: {{collection: {collection}, documents: [{', '.join(documents)}]}}"


def written(folder: Path, steps: list[str]) -> Path:
    return write_catalog(folder, CATALOG + "".join(f"    - {each}\n" for each in steps))


def run(folder: Path, *steps: str) -> Failure | None:
    [result] = run_tests(load(written(folder, list(steps))))
    return result.failure


def test_read_delay_expires_at_its_time(tmp_path: Path) -> None:
    steps = [
        ingest("+0s", 1, 2),
        "advance: 59m",
        verify("t/alerts"),
        "advance: 59s 999ms",
        verify("t/alerts"),
        "advance: 1ms",
        verify("t/alerts", "{id: 1, at: '01:00:00'}", "{id: 2, at: '01:00:00'}"),
        verify("t/relayed"),
        ingest("+1h 1m", 3),
        verify("t/relayed", "{id: 1}", "{id: 2}"),
        verify("t/alerts", "{id: 1}", "{id: 2}"),
        ingest("2024-01-01T02:00:00.5Z", 4),
        verify("t/alerts", "{id: 1}", "{id: 2}"),
        "advance: 500ms",
        "advance: 59s 500ms",
        verify("t/alerts", "{id: 1}", "{id: 2}", "{id: 3, at: '02:01:00'}"),
    ]
    assert run(tmp_path, *steps) is None


def test_verify_without_times_waits_for_all_delays(tmp_path: Path) -> None:
    assert run(tmp_path, ONE, verify("t/relayed", "{id: 1}"), verify("t/alerts", "{id: 1}")) is None


def test_documents_have_the_time_of_their_step_one_after_the_other(tmp_path: Path) -> None:
    assert run(tmp_path, ingest("2013-07-01T09:00:00+02:00", 2, 1), "advance: 1h", verify("t/alerts", "{id: 1, at: '08:00:00'}", "{id: 2}")) is None  # fmt: skip


def test_step_at_the_end_of_a_tick_is_verified_completely(tmp_path: Path) -> None:
    assert run(tmp_path, ingest("+3s 999ms 999us", 1, 2, 3), verify("t/seven", "{}", "{}", "{}")) is None


def test_failure_reports_its_time_and_pending_documents(tmp_path: Path) -> None:
    path = written(tmp_path, [ingest("+5m", 1, 2), "advance: 30m", ingest("+40m", 3), verify("t/relayed", "{id: 1}")])
    result = CliRunner().invoke(flowctl, ["test", "--source", str(path)])

    assert result.exit_code == 1
    assert result.stdout.splitlines()[:-1] == [
        f"FAIL t/test · step 4 · verify t/relayed at +40m    {path}:56:7",
        '  [1]  is missing; expected {"id":1}',
        "  still to come: 3 documents from +1h 5m on, through 'hourLater' of t/alerts",
    ]


def test_failures_report_pending_documents_by_collection(tmp_path: Path) -> None:
    failure = run(tmp_path, ingest("+0s", 1), "advance: 1h", verify("t/relayed", "{id: 9}"))

    assert failure is not None
    assert failure.to_come == ("1 document at +1h 1m, through 'relay' of t/relayed",)
    failure = run(tmp_path, ingest("+0s", 1), "advance: 1h", verify("t/alerts"))
    assert failure is not None
    assert (failure.description, failure.to_come) == ("verify t/alerts at +1h", ())


@pytest.mark.parametrize("timed", [False, True])
def test_only_upstream_derivations_of_verified_collections_run(timed: bool, tmp_path: Path) -> None:
    first = ingest("+0s", 1) if timed else ONE

    assert run(tmp_path, first, verify("t/seven", "{id: 1}")) is None
    failure = run(tmp_path, first, verify("t/picky", "{id: 1}"))
    assert failure is not None
    assert "malformed JSON" in str(failure.error)


@pytest.mark.parametrize(
    ("steps", "failed"),
    [
        ([ingest("+0s", 1), verify("t/picky")], (2, "verify t/picky at +0s")),
        ([ingest("+0s", 1), "advance: 3s", verify("t/picky")], (2, "advance to +3s")),
        ([ingest("+0s", 1), ingest("+3s", 2), verify("t/picky")], (2, "ingest t/source at +3s")),
        # also what nothing comes after is processed, and by all if nothing is verified
        ([verify("t/picky"), ingest("+0s", 1)], (2, "the end of the test")),
        ([ingest("+0s", 1)], (1, "the end of the test")),
        ([ONE], (1, "ingest t/source")),
    ],
)
def test_step_that_advances_time_over_an_error_fails(steps: list[str], failed: tuple[int, str], tmp_path: Path) -> None:
    failure = run(tmp_path, *steps)

    assert failure is not None
    assert (failure.step, failure.description) == failed
    assert "malformed JSON" in str(failure.error)


@pytest.mark.parametrize("at", [None, "+3s", "+12s", "+13s 900ms"])
def test_derivations_may_have_different_ticks(at: str | None, tmp_path: Path) -> None:
    assert run(tmp_path, ingest(at, 1) if at else ONE, verify("t/five", "{id: 1}")) is None


@pytest.mark.parametrize("first", ["ingest: {collection: t/seven, documents: [{id: 1}]}", "ingest: {collection: t/seven, at: +12s, documents: [{id: 1}]}"])  # fmt: skip
def test_test_may_ingest_into_a_derived_collection(first: str, tmp_path: Path) -> None:
    assert run(tmp_path, first, verify("t/five", "{id: 1}")) is None


def test_virtual_time_visits_each_due_time(tmp_path: Path) -> None:
    assert run(tmp_path, ingest("+0s", 1), "advance: 3h", verify("t/ranked", "{id: 1, at: in time}")) is None


def test_feedback_is_processed_up_to_the_time(tmp_path: Path) -> None:
    steps = [ingest("+0s", 1), verify("t/endless", "{id: 1}"), "advance: 2s", verify("t/endless", *("{id: 1}", "{id: 2}", "{id: 3}"))]  # fmt: skip

    assert run(tmp_path, *steps) is None


def test_endless_feedback_fails(tmp_path: Path) -> None:
    catalog = load(written(tmp_path, [ingest("+0s", 1), "advance: 1h", verify("t/endless")]))
    test = catalog.tests["t/test"]
    time = VirtualTime(catalog, tmp_path / "data", test.begin, tasks_of(catalog, test), most_ticks=20)
    Ingestion(time.store, catalog.collections["t/source"]).load("it", [(1, {"id": 1})])
    with pytest.raises(TaskError) as reported:
        time.pass_until(test.begin + 3600 * 1_000_000)
    time.close()
    assert str(reported.value) == (
        "after 20 ticks with documents, the test has only reached +20s"
        " (advance by a shorter time; or check whether a derivation feeds back without end)"
    )
