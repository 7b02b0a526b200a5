"""What `flowctl status` and `flowctl logs` tell of compute instances, from outside."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from forked_flowctl import flowctl
from patience import PATIENCE_SECONDS
from test_replicas import replicas_of
from test_sql_serve import serve


def instances_of(folder: Path) -> list[dict[str, Any]]:
    """What is told of instances."""
    status, out, err = flowctl(folder, "status", "-o", "json")
    assert status == 0, err
    return [json.loads(line) for line in out.splitlines()]


def wait_for_instances(folder: Path, condition: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition(instances := instances_of(folder)):
        assert time.monotonic() < deadline, instances
    return instances


def test_help_states_where_instances_may_run(tmp_path: Path) -> None:
    """Without PostgreSQL, `host.lock` refuses other machines, so pages do not offer them."""
    status, out, _ = flowctl(tmp_path, "compute", "--help")
    assert status == 0
    text = " ".join(out.split())
    assert "The instance runs on the same machine as that server" in text
    assert "With the metadata in PostgreSQL, the instance may run on another machine" in text
    pages = Path(__file__).parents[2] / "docs"
    assert "one machine only" in " ".join((pages / "instances.md").read_text().split())
    for page in pages.glob("*.md"):
        addresses = re.findall(r"(?:--instance|ADDRESS '?|--listen) ?(\S+):6876", page.read_text())
        assert {address.strip("'`") for address in addresses} <= {"127.0.0.1"}, page


def test_status_lists_instances_and_dataflows_by_their_sql_names(tmp_path: Path) -> None:
    with serve(tmp_path, "--replicas", "2", "--instance", "127.0.0.1:9") as served:
        with psycopg.connect(served.address, autocommit=True) as connection:
            connection.execute("CREATE TABLE t (a bigint, b bigint)")
            connection.execute("CREATE MATERIALIZED VIEW sums AS SELECT a, sum(b) AS b FROM t GROUP BY a")
            connection.execute("CREATE INDEX by_a ON t (a)")
            connection.execute("CREATE MATERIALIZED VIEW ratios AS SELECT a, a / b AS ratio FROM sums")
            connection.execute("INSERT INTO t VALUES (1, 2)")

        def is_up(instances: list[dict[str, Any]]) -> bool:
            if len(instances) < 3 or "no instance listens" not in (instances[2]["reason"] or ""):
                return False
            return all(len(instance["dataflows"]) == 3 for instance in instances[:2])

        r1, r2, other = wait_for_instances(tmp_path, is_up)
        assert [instance["instance"] for instance in (r1, r2, other)] == ["r1", "r2", "127.0.0.1:9"]
        assert {instance["state"] for instance in (r1, r2)} == {"connected"}
        assert r1["address"].startswith("127.0.0.1:")
        assert [(one["name"], one["kind"], one["error"]) for one in r1["dataflows"]] == [
            ("sums", "materialized view", None),
            ("by_a", "index", None),
            ("ratios", "materialized view", None),
        ]
        assert all(one["lag"] and one["upper"] for one in r1["dataflows"])
        assert r1["memory MiB"] > 20
        assert (other["state"], other["lag"], other["dataflows"]) == ("connecting", None, [])
        assert other["reason"] == "no instance listens at its address"

        killed = replicas_of(served)[0]
        os.kill(killed, signal.SIGKILL)
        before = {instance["process"] for instance in (r1, r2)}
        wait_for_instances(
            tmp_path,
            lambda instances: is_up(instances) and {instance["process"] for instance in instances[:2]} != before,
        )
        _, out, _ = flowctl(tmp_path, "logs")
        reported = [entry["message"] for entry in map(json.loads, out.splitlines())]
        assert any(
            "rebuilt public.sums (was not there), public.by_a (was not there)" in message for message in reported
        ) or any("kept public.sums, public.by_a, public.ratios" in message for message in reported), reported
        assert not any("u1" in message for message in reported)

        _, table, _ = flowctl(tmp_path, "status", "-o", "table")
        assert "sums    materialized view" in table
        assert table.count("by_a") == 1

        served.stop(signal.SIGKILL)
        status, out, err = flowctl(tmp_path, "status", "-o", "json")
        assert status == 0
        assert {json.loads(line)["state"] for line in out.splitlines()} == {"unknown"}
        assert f":{served.process.pid} recorded them at " in err

    with serve(tmp_path) as served:
        (here,) = wait_for_instances(tmp_path, lambda instances: [one["state"] for one in instances] == ["connected"])
        assert (here["instance"], here["state"], here["address"]) == ("local", "connected", None)
        assert served.stop() == 0
    assert flowctl(tmp_path, "status", "--data", str(tmp_path / ".flow")) == (0, "", "")


def test_status_and_logs_show_instances_of_a_folder_without_a_catalog(tmp_path: Path) -> None:
    with serve(tmp_path) as served:
        (tmp_path / "flow.yaml").unlink()
        data = ("--data", str(tmp_path / ".flow"))
        with psycopg.connect(served.address, autocommit=True) as connection:
            connection.execute("CREATE TABLE t (a bigint)")
            connection.execute("CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while '"name":"v"' not in (reported := flowctl(tmp_path, "status", *data)[1]):
            assert time.monotonic() < deadline, reported
        assert "replica local is connected" in flowctl(tmp_path, "logs", "--task", "sql-views", *data)[1]
