"""`--metrics` and `--traces` of `flowctl run`, `flowctl sql serve` and `flowctl compute`, from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.error import HTTPError

import psycopg
import pytest
from conftest import write_catalog
from forked_flowctl import Flowctl, flowctl
from patience import PATIENCE_SECONDS

CATALOG = """
collections:
  w/numbers: {schema: &s {type: object, required: [id], properties: {id: {type: integer}}}, key: [/id]}
  w/copies:
    schema: *s
    key: [/id]
    derive: {using: {sqlite: {}}, transforms: [{name: copy, source: w/numbers, shuffle: any, lambda: SELECT $id}]}
"""


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[tuple[Flowctl, str]]:
    """A process that shows metrics, and their address; it stops by SIGTERM."""
    process = Flowctl(
        [*arguments, "--metrics", "0"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stderr
    try:
        lead, _, url = process.stderr.readline().strip().partition("http://")
        assert (lead, url[:10]) == ("metrics at ", "127.0.0.1:")
        yield process, f"http://{url.removesuffix('/metrics')}"
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def fetch(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def samples(url: str) -> dict[str, float]:
    lines = [line for line in fetch(f"{url}/metrics")[1].splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def ingested(folder: Path) -> Path:
    write_catalog(folder, CATALOG)
    (folder / "numbers.jsonl").write_text('{"id": 1}\n{"id": 2}\n')
    assert flowctl(folder, "ingest", "--collection", "w/numbers", "numbers.jsonl")[0] == 0
    return folder


def test_run_shows_its_tasks_and_its_readiness(tmp_path: Path) -> None:
    with running(ingested(tmp_path), "run") as (process, url):
        assert process.stderr
        assert process.stderr.readline().startswith("running 1 task;")
        assert fetch(f"{url}/live") == (200, "live\n")
        assert fetch(f"{url}/ready") == (200, "ready: 1 task\n")
        while not (shown := samples(url))['flow_task_documents_in_total{task="w/copies"}']:
            process.stderr.readline()  # the report of the transaction
        assert shown['flow_task_documents_out_total{task="w/copies"}'] == 2
        assert shown['flow_task_transaction_seconds_count{task="w/copies"}'] == 1
        assert shown['flow_collection_documents{collection="w/numbers"}'] == 2
        assert fetch(f"{url}/dashboard.json")[0] == 200


def test_sql_server_shows_sessions_statements_and_views(tmp_path: Path) -> None:
    write_catalog(tmp_path, CATALOG)
    with running(tmp_path, "sql", "serve", "--listen", "127.0.0.1:0") as (process, url):
        assert process.stdout
        host, _, port = process.stdout.readline().strip().rpartition(":")
        with psycopg.connect(f"host={host} port={port} user=flow dbname=flow", autocommit=True) as connection:
            connection.execute("CREATE TABLE t (a bigint)")
            connection.execute("CREATE MATERIALIZED VIEW sums AS SELECT sum(a) AS a FROM t")
            connection.execute("INSERT INTO t VALUES (1), (2)")
            with pytest.raises(psycopg.errors.UndefinedColumn):
                connection.execute("SELECT nope FROM t")
            assert connection.execute("SELECT a FROM sums").fetchone() == (3,)
            shown = samples(url)
            assert shown['flow_sql_sessions{state="idle"}'] == 1
            assert shown["flow_sql_connections_total"] == 1
            assert shown['flow_sql_errors_total{class="42"}'] == 1
            assert shown["flow_sql_statement_seconds_count"] == 4
            assert shown["flow_sql_commit_seconds_count"] >= 1
            while 'flow_view_lag_seconds{view="sums"}' not in (shown := samples(url)):  # no instance has reported it
                connection.execute("SELECT pg_sleep(0.05)")
            assert shown['flow_view_failed{view="sums"}'] == 0
            assert 0 <= shown['flow_view_lag_seconds{view="sums"}'] < 60
            assert [value for name, value in shown.items() if name.startswith("flow_replica_connected")] == [1]
            assert fetch(f"{url}/ready") == (200, "ready: 1 session\n")


def test_compute_instance_shows_its_dataflows(tmp_path: Path) -> None:
    write_catalog(tmp_path, CATALOG)
    assert flowctl(tmp_path, "sql", "-c", "CREATE TABLE t (a bigint)")[0] == 0
    with running(tmp_path, "compute", "--listen", "127.0.0.1:0", "--data", ".flow") as (process, url):
        assert process.stdout
        address = process.stdout.readline().strip()
        assert fetch(f"{url}/ready") == (200, "ready: waiting for an SQL server\n")
        assert samples(url)["flow_compute_connected"] == 0
        with running(tmp_path, "sql", "serve", "--listen", "127.0.0.1:0", "--instance", address) as (server, of_server):
            assert server.stdout
            host, _, port = server.stdout.readline().strip().rpartition(":")
            with psycopg.connect(f"host={host} port={port} user=flow dbname=flow", autocommit=True) as connection:
                connection.execute("CREATE INDEX ON t (a)")
                connection.execute("INSERT INTO t VALUES (1)")
                while (shown := samples(url))["flow_compute_dataflows"] < 1:
                    connection.execute("SELECT pg_sleep(0.05)")
            assert (shown["flow_compute_connected"], shown["flow_compute_sessions_total"]) == (1, 1)
            assert 0 <= shown["flow_compute_lag_seconds"] < 60
            assert samples(of_server)[f'flow_replica_connected{{replica="{address}"}}'] == 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--metrics", "here"], "--metrics takes a port or HOST:PORT, not here"),
        (["--metrics", "127.0.0.1:99999"], "--metrics takes a port or HOST:PORT, not 127.0.0.1:99999"),
        (["--metrics-host", "driver.example"], "--metrics-host needs an address"),
        (["--auto-split", "4"], "--auto-split and --until-idle exclude each other"),
        (["--metrics", "no.such.host.invalid:0"], "--metrics cannot listen at no.such.host.invalid:0"),
    ],
)
def test_run_refuses_wrong_options_of_monitoring(tmp_path: Path, options: list[str], error: str) -> None:
    write_catalog(tmp_path, CATALOG)

    status, out, err = flowctl(tmp_path, "run", "--until-idle", *options)

    assert (status, out) == (2, "")
    assert err.startswith(f"error: {error}")


class _Collector(BaseHTTPRequestHandler):
    received: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        self.received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_run_sends_traces_over_otlp(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    ingested(tmp_path)
    received: list[tuple[str, bytes]] = []
    with HTTPServer(("127.0.0.1", 0), type("Collector", (_Collector,), {"received": received})) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_SERVICE_NAME": "driver-1"}
        status, _, err = flowctl(tmp_path, "run", "--until-idle", "--traces", env=environment)
        server.shutdown()

    assert (status, [path for path, _ in received]) == (0, ["/v1/traces"]), err
    (_, body), *_ = received
    assert all(text in body for text in (b"transaction", b"w/copies", b"flow.documents_in", b"commit", b"driver-1"))
