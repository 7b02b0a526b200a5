"""The monitor over HTTP: what it answers, whom it answers, and that documentation and dashboard know its metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection

import pytest
from checkout import REPOSITORY
from patience import PATIENCE_SECONDS

from derive.errors import StorageError, UsageError
from derive.instruments import Histogram, Metric, Sample
from derive.metrics.definitions import METRICS
from derive.metrics.exposition import text_of
from derive.metrics.monitor import Monitor, Readiness
from derive.metrics.server import MonitorServer, dashboard

LAG = Metric("flow_lag_seconds", "gauge", "Lag.", ("task",))


@contextmanager
def served(monitor: Monitor, host: str = "127.0.0.1", *names: str) -> Iterator[int]:
    """The port of a server."""
    server = MonitorServer(monitor, host, 0, names)
    try:
        yield int(server.address.rpartition(":")[2])
    finally:
        server.close()


def fetch(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
    try:
        connection.putrequest(method, path, skip_host=True)
        for name, value in {"Host": f"localhost:{port}", **headers}.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_monitor_answers_metrics_health_and_dashboard() -> None:
    monitor = Monitor("run")
    monitor.add(lambda: [Sample(LAG, 1.5, ("acme/sums",))])
    with served(monitor) as port:
        status, text = fetch(port, "/metrics")
        assert (status, text.splitlines()[:3]) == (
            200,
            [
                "# HELP flow_lag_seconds Lag.",
                "# TYPE flow_lag_seconds gauge",
                'flow_lag_seconds{task="acme/sums"} 1.5',
            ],
        )
        assert 'flow_info{command="run",version="' in text
        assert re.search(r"^process_resident_memory_bytes [1-9]\d{6,}$", text, re.MULTILINE)
        assert fetch(port, "/live") == (200, "live\n")
        assert fetch(port, "/ready") == (503, "starting\n")
        monitor.begin(lambda: Readiness(True, "ready: 1 task"))
        assert fetch(port, "/ready?verbose") == (200, "ready: 1 task\n")
        with monitor.troubled("no space left"):
            assert fetch(port, "/ready") == (503, "no space left\n")
        assert json.loads(fetch(port, "/dashboard.json")[1])["title"] == "derive-flow"
        assert fetch(port, "/live", "HEAD") == (200, "")
        assert fetch(port, "/live", "POST")[0] == 501
        assert fetch(port, "/secrets")[0] == 404
        monitor.end()
        assert fetch(port, "/ready") == (503, "ending\n")
        assert "flow_lag_seconds" not in fetch(port, "/metrics")[1]


def test_monitor_leaves_out_parts_that_cannot_be_read() -> None:
    def busy() -> Iterator[Sample]:
        yield Sample(LAG, 1, ("acme/sums",))
        raise StorageError("busy")

    def broken() -> Iterator[Sample]:
        raise ValueError("a defect")
        yield

    monitor = Monitor("run")
    monitor.add(busy)
    with served(monitor) as port:
        status, text = fetch(port, "/metrics")
        assert (status, "flow_lag_seconds" in text, "flow_info" in text) == (200, False, True)
        monitor.add(broken)
        assert fetch(port, "/metrics") == (500, "ValueError: a defect\n")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("host", "names", "headers", "status"),
    [
        ("127.0.0.1", [], {"Host": "127.0.0.1:1"}, 200),
        ("127.0.0.1", [], {"Host": "[::1]:1"}, 200),
        ("127.0.0.1", [], {"Host": "evil.example"}, 421),  # DNS rebinding
        ("127.0.0.1", [], {"Host": "10.0.0.5:1"}, 421),
        ("127.0.0.1", ["driver.example"], {"Host": "Driver.example:1"}, 200),
        ("0.0.0.0", [], {"Host": "10.0.0.5:1"}, 200),  # as Prometheus and kubelet do
        ("0.0.0.0", [], {"Host": "evil.example"}, 421),
        ("0.0.0.0", ["driver.example"], {"Host": "driver.example"}, 200),
        ("127.0.0.1", [], {"Host": "localhost:1", "Origin": "http://evil.example"}, 403),
        ("127.0.0.1", [], {"Host": "localhost:1", "Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
def test_monitor_refuses_requests_of_other_sites(
    host: str, names: list[str], headers: dict[str, str], status: int
) -> None:
    with served(Monitor("run"), host, *names) as port:
        assert fetch(port, "/live", **headers)[0] == status


def test_monitor_reports_a_port_in_use() -> None:
    with (
        served(Monitor("run")) as port,
        pytest.raises(UsageError, match=f"--metrics cannot listen at 127.0.0.1:{port}"),
    ):
        MonitorServer(Monitor("run"), "127.0.0.1", port)


def test_histogram_text_has_cumulative_buckets() -> None:
    histogram = Histogram((0.25, 1.0))
    for value in (0.25, 0.5, 0.5, 3.0):
        histogram.observe(value)

    text = text_of([Sample(Metric("t_seconds", "histogram", "T.", ("task",)), histogram.distribution(), ("a\\b\n",))])

    assert text.splitlines() == [
        "# HELP t_seconds T.",
        "# TYPE t_seconds histogram",
        't_seconds_bucket{task="a\\\\b\\n",le="0.25"} 1',
        't_seconds_bucket{task="a\\\\b\\n",le="1"} 3',
        't_seconds_bucket{task="a\\\\b\\n",le="+Inf"} 4',
        't_seconds_sum{task="a\\\\b\\n"} 4.25',
        't_seconds_count{task="a\\\\b\\n"} 4',
    ]


def test_metric_names_follow_conventions() -> None:
    names = [metric.name for metric in METRICS]

    assert len(set(names)) == len(names) > 40
    assert [name for name in names if not re.fullmatch(r"(flow|process)(_[a-z]+)+", name)] == []
    assert [metric.name for metric in METRICS if (metric.kind == "counter") != metric.name.endswith("_total")] == []
    assert [
        metric.name for metric in METRICS if metric.kind == "histogram" and not metric.name.endswith("_seconds")
    ] == []
    assert {"job", "instance", "le"}.isdisjoint({label for metric in METRICS for label in metric.labels})


def test_metrics_page_has_a_row_for_each_metric() -> None:
    page = (REPOSITORY / "docs/metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (gauge|counter|histogram) \| (.*?) \| (.*) \|$", page, re.MULTILINE)

    defined = {(m.name, m.kind, ", ".join(f"`{label}`" for label in m.labels), m.help) for m in METRICS}
    assert set(rows) == defined
    assert len(rows) == len(defined)


def test_dashboard_shows_metrics_that_exist() -> None:
    panels = json.loads(dashboard())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    named = {name for query in queries for name in re.findall(r"\b(?:flow|process)_\w+", query)}
    known = {
        f"{metric.name}{end}"
        for metric in METRICS
        if metric.kind == "histogram"
        for end in ("_bucket", "_count", "_sum")
    }
    known |= {metric.name for metric in METRICS if metric.kind != "histogram"}

    assert named - known == set()
    assert len({name.removesuffix("_bucket").removesuffix("_count") for name in named}) > 35
    assert len({panel["id"] for panel in panels}) == len(panels)
