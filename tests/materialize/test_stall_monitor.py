"""Answers that are long in coming are told of, each time after twice as long, and when they come."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
from patience import wait_until
from real_runs import Project, connector_of, end, sales, sqlite

from derive.materialize.worker import Stall, StallMonitor


def test_stalls_are_reported_at_growing_intervals() -> None:
    reported: list[str] = []
    stall = StallMonitor(0.01).add(Stall("the connector", reported.append, 0.1))
    with stall.waiting():
        wait_until(lambda: len(reported) >= 3)
    count = len(reported)
    with stall.waiting():
        pass

    assert re.match(r"the connector has not answered for \d+ s; the task waits for the answer", reported[0])
    assert reported[-1].startswith("the connector has answered after ")
    assert len(reported) == count


def test_stall_monitor_reports_nothing_after_a_call_has_failed() -> None:
    reported: list[str] = []
    stall = Stall("the connector", reported.append, 0.0)
    with pytest.raises(OSError, match="gone"), stall.waiting():
        stall.look()
        raise OSError("gone")
    stall.look()

    assert len(reported) == 1


def test_stall_monitor_continues_after_garbage_collection() -> None:
    reported: list[str] = []
    watch = StallMonitor(0.01)
    watch.add(Stall("gone", reported.append, 0.0))
    stays = watch.add(Stall("stays", reported.append, 0.05))
    threads = threading.active_count()
    with stays.waiting():
        wait_until(lambda: len(reported) > 0)

    assert "stays" in reported[0]
    assert threading.active_count() == threads


def test_a_run_whose_connector_is_stopped_can_be_stopped(tmp_path: Path) -> None:
    project = Project(tmp_path / "project", sqlite(tmp_path))
    project.ingest(sales(0, 100))
    with project.run() as run:
        project.wait_until_stored()
        connector = connector_of(run)
        os.kill(connector, signal.SIGSTOP)
        project.ingest(sales(100, 200))
        wait_until(lambda: "behind" in project.called("status")[1])
        time.sleep(0.5)
        end(run)
        wait_until(lambda: not Path(f"/proc/{connector}").exists())
    with project.run() as run:
        project.wait_until_stored()
        end(run)
