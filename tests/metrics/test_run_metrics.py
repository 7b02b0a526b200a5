"""Metrics and traces of a run: the values that its tasks show, and that they agree with what was committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import World, write_catalog

from derive.catalog import load
from derive.engine.executor import InProcessExecutor
from derive.engine.run import Run, SilentObserver
from derive.engine.task_reconciler import open_run
from derive.instruments import Distribution
from derive.metrics.run import CountingObserver, RunMetrics

CATALOG = """
collections:
  m/numbers:
    schema: &schema {type: object, required: [id, n], properties: {id: {type: integer}, n: {type: integer}}}
    key: [/id]
  m/halves:
    schema: *schema
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms: [{name: half, source: m/numbers, shuffle: any, lambda: "SELECT $id, 12 / $n AS n;"}]
  m/late:
    schema: *schema
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms: [{name: later, source: m/numbers, shuffle: any, readDelay: 1h, lambda: "SELECT $id, $n;"}]
"""


@dataclass
class Idle:
    was_started: bool = False


def opened(world: World, observer: CountingObserver) -> tuple[Run, RunMetrics]:
    run = open_run(world.catalog, world.store, InProcessExecutor(), observer=observer)
    return run, RunMetrics(run, world.store, observer, Idle())


def values(metrics: RunMetrics) -> dict[tuple[str, ...], object]:
    """Return the value of each sample, by the name of its metric and its labels."""
    return {(sample.metric.name, *sample.labels): sample.value for sample in metrics.samples()}


def test_run_metrics_count_what_tasks_have_committed(tmp_path: Path) -> None:
    world = World(tmp_path / "data", load(write_catalog(tmp_path, CATALOG)))
    observer = CountingObserver(SilentObserver())
    run, metrics = opened(world, observer)
    before = values(metrics)
    assert before["flow_task_transactions_total", "m/halves"] == 0
    assert before["flow_task_waiting_documents", "m/halves", "due"] == 0
    assert ("flow_task_lag_seconds", "m/halves") not in before

    world.ingest("m/numbers", [{"id": number, "n": 3} for number in range(100)], clock=None)
    world.wall += 10_000_000
    waiting = values(metrics)
    assert waiting["flow_task_waiting_documents", "m/halves", "due"] == 100
    assert waiting["flow_task_waiting_documents", "m/late", "due"] == 0
    assert waiting["flow_task_waiting_documents", "m/late", "delayed"] == 100
    run.step()

    after = values(metrics)
    assert after["flow_task_transactions_total", "m/halves"] == 1
    assert after["flow_task_documents_in_total", "m/halves"] == 100
    assert after["flow_task_documents_out_total", "m/halves"] == 100
    assert after["flow_task_waiting_documents", "m/halves", "due"] == 0
    assert after["flow_task_waiting_documents", "m/late", "delayed"] == 100
    assert after["flow_task_stopped", "m/halves"] == 0
    assert after["flow_task_shards", "m/halves"] == 1
    (source,) = world.store.segments(world.catalog.collections["m/numbers"], None, 0)
    (written,) = world.store.segments(world.catalog.collections["m/halves"], None, 0)
    assert after["flow_task_bytes_in_total", "m/halves"] == source.bytes
    assert after["flow_task_bytes_out_total", "m/halves"] == written.bytes
    assert after["flow_collection_documents", "m/halves"] == 100
    assert after["flow_collection_segments", "m/numbers"] == 1
    assert after["flow_collection_bytes", "m/halves"] == written.bytes
    assert after["flow_spark_up",] == 0
    duration = after["flow_task_transaction_seconds", "m/halves"]
    assert isinstance(duration, Distribution)
    phases = [after["flow_task_phase_seconds_total", "m/halves", phase] for phase in ("plan", "execute", "commit")]
    assert all(isinstance(seconds, float) and seconds > 0 for seconds in phases)
    assert duration.cumulative[float("inf")] == 1
    lag = after["flow_task_lag_seconds", "m/halves"]
    assert isinstance(lag, float)
    assert 0 <= lag < 1
    assert metrics.readiness().reason == "ready: 2 tasks"
    run.close()


def test_run_metrics_count_errors_and_show_stopped_tasks(tmp_path: Path) -> None:
    text = CATALOG.replace("12 / $n AS n", "iif($n = 0, 'none', 12 / $n) AS n")
    world = World(tmp_path / "data", load(write_catalog(tmp_path, text)))
    run, metrics = opened(world, CountingObserver(SilentObserver()))
    world.ingest("m/numbers", [{"id": 1, "n": 0}], clock=None)
    world.wall += 10_000_000
    run.step()

    shown = values(metrics)
    assert shown["flow_task_errors_total", "m/halves", "false"] == 1
    assert shown["flow_task_errors_total", "m/halves", "true"] == 0
    assert shown["flow_task_stopped", "m/halves"] == 1
    assert shown["flow_task_waiting_documents", "m/halves", "due"] == 1
    assert (metrics.readiness().is_ready, metrics.readiness().reason) == (True, "1 of 2 tasks stopped: m/halves")
    run.tasks["m/late"].error = run.tasks["m/halves"].error
    assert not metrics.readiness().is_ready
    run.close()


def test_traces_have_a_span_for_each_transaction(tmp_path: Path) -> None:
    export = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    from derive.metrics.traces import TracingObserver

    world = World(tmp_path / "data", load(write_catalog(tmp_path, CATALOG)))
    exporter = export.InMemorySpanExporter()
    observer = TracingObserver(SilentObserver(), exporter)
    run = open_run(world.catalog, world.store, InProcessExecutor(), observer=observer)
    world.ingest("m/numbers", [{"id": 1, "n": 3}, {"id": 2, "n": 4}], clock=None)
    world.wall += 10_000_000
    run.step()
    world.ingest("m/numbers", [{"id": 3, "n": 0}], clock=None)  # a document without "n" is invalid
    world.wall += 10_000_000
    run.step()
    observer.close()
    run.close()

    spans: Sequence[object] = exporter.get_finished_spans()
    described = [(span.name, dict(span.attributes), span.status.description) for span in spans if not span.parent]  # type: ignore[attr-defined]
    assert [name for name, _, _ in described] == ["transaction", "transaction"]
    assert described[0][1]["flow.task"] == "m/halves"
    assert described[0][1]["flow.documents_in"] == 2
    assert described[1][2] == "SchemaViolation"
    parts = [span for span in spans if span.parent]  # type: ignore[attr-defined]
    assert [span.name for span in parts] == ["plan", "execute", "commit"]  # type: ignore[attr-defined]
    assert all(span.parent.span_id == spans[3].context.span_id for span in parts)  # type: ignore[attr-defined]
