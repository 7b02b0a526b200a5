"""The bench of the pages: `flowctl ui` over 100 collections with 1,000,000 documents, in headless Chromium.

Three figures are printed: the time from the request of a page to its first paint, the time from the end of an ingestion
to the changed number on an open page, and the processor time of an open page while nothing happens, alone and beside a
run without work. The exit code is 1 if a limit is missed.

Chromium is that of Debian, and Playwright is in no extra, because nothing else needs them: without either, the bench is
passed over.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

from bench.process import end, flowctl, run
from bench.report import Column, Report, Value
from derive.catalog import load
from derive.storage.ingest import Ingestion
from derive.storage.store import Store

PAINT_SECONDS, SHOWN_SECONDS, IDLE_SHARE = 1.0, 1.0, 0.01
"""Limits: seconds to the first paint and to a shown document; processors of an idle page."""

_PAINT = """() => new Promise((done) => {
  new PerformanceObserver((list) => {
    for (const entry of list.getEntriesByName("first-contentful-paint")) done(entry.startTime);
  }).observe({ type: "paint", buffered: true });
})"""
"""Returns the milliseconds from the begin of the navigation to the first paint of any content."""

_INGESTED = 50
_PAGES = ("/", "/collections", "/collections/bench/c00", "/tasks", "/tasks/bench/d00", "/quarantine", "/tests", "/sql")
_SCHEMA = "{type: object, required: [id], properties: {id: {type: integer}, v: {type: integer}}}"
_DERIVED = """\
  bench/d%(number)02d:
    key: [/id]
    schema: %(schema)s
    derive:
      using: {sqlite: {}}
      transforms: [{name: all, source: bench/c%(number)02d, shuffle: any, lambda: "SELECT $id, $v;"}]
"""


def catalog_of(folder: Path) -> Path:
    """Write a catalog of 50 collections, and of 50 that are derived from them."""
    ingested = [f"  bench/c{number:02d}: {{key: [/id], schema: {_SCHEMA}}}\n" for number in range(_INGESTED)]
    derived = [_DERIVED % {"number": number, "schema": _SCHEMA} for number in range(_INGESTED)]
    source = folder / "flow.yaml"
    source.write_text("collections:\n" + "".join(ingested + derived))
    return source


def fill(source: Path, data: Path, documents: int) -> None:
    """Ingest and derive documents, together this number."""
    catalog = load(source)
    share = documents // (2 * _INGESTED)
    with closing(Store(data, durable=False)) as store:
        for number in range(_INGESTED):
            rows = ((line, {"id": line, "v": line % 97}) for line in range(1, share + 1))
            Ingestion(store, catalog.collections[f"bench/c{number:02d}"]).load("bench", rows)
    run(
        flowctl(
            "run", "--until-idle", "--local-documents", str(documents), "--source", str(source), "--data", str(data)
        )
    )


@contextmanager
def serving(source: Path, data: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Serve pages; yield the process and the URL."""
    command = flowctl("ui", "--listen", "127.0.0.1:0", "--source", str(source), "--data", str(data))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        end(process)


def processor_seconds(processes: set[int]) -> float:
    """Return the processor seconds of processes so far."""
    seconds = 0.0
    for process in processes:
        try:
            fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        except FileNotFoundError:
            continue
        seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


def with_children(process: int) -> set[int]:
    """Return a process and all processes that it has begun."""
    processes = {process}
    for thread in Path(f"/proc/{process}/task").iterdir():
        for child in (thread / "children").read_text().split():
            processes |= with_children(int(child))
    return processes


def painted(browser: Any, url: str) -> float:
    """Return the seconds from the request of a page in a new tab to its first paint."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(url)
    seconds = float(page.evaluate(_PAINT)) / 1000
    page.close()
    return seconds


def shown(browser: Any, url: str, source: Path, data: Path, times: int) -> list[float]:
    """Ingest single documents; return the seconds from each commit to the changed number on an open page."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(f"{url}/collections/bench/c00")
    spec, seconds = load(source).collections["bench/c00"], []
    with closing(Store(data)) as store:
        known = store.collection(spec.name)
        assert known is not None
        for number in range(known.documents + 1, known.documents + times + 1):
            Ingestion(store, spec).load("bench", [(1, {"id": 0, "v": number})])
            begun = time.perf_counter()
            page.get_by_text(f"{number:,}", exact=True).first.wait_for()
            seconds.append(time.perf_counter() - begun)
            time.sleep(0.7)
    page.close()
    return seconds


def idle(browser: Any, url: str, server: int, seconds: float) -> tuple[float, float]:
    """Return the processors that the server and the browser use for an open page."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(url)
    time.sleep(5)
    browsers = with_children(os.getpid()) - with_children(server)
    before = processor_seconds({server}), processor_seconds(browsers)
    time.sleep(seconds)
    after = processor_seconds({server}), processor_seconds(browsers)
    page.close()
    return (after[0] - before[0]) / seconds, (after[1] - before[1]) / seconds


def measure(options: argparse.Namespace, report: Report, folder: Path) -> None:
    """Measure all figures."""
    from playwright.sync_api import sync_playwright

    source, data, count = catalog_of(folder), folder / "data", options.documents
    fill(source, data, count)
    with serving(source, data) as (server, url), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=which("chromium"), args=["--no-sandbox"])
        columns = [Column("first s"), Column("median s"), Column("server s")]
        report.begin("paint", columns, about="First paint of a page in a new tab, and processor time of the server")
        for path in _PAGES:
            before = processor_seconds({server.pid})
            first, *others = [painted(browser, url + path) for _ in range(5)]
            spent = (processor_seconds({server.pid}) - before) / 5
            miss = f"more than {PAINT_SECONDS} s" if max(first, *others) > PAINT_SECONDS else None
            values: dict[str, Value] = {"first s": first, "median s": statistics.median(others), "server s": spent}
            report.row(count, path, values, miss=miss)
        report.begin("shown", [Column("median s"), Column("worst s")], about="From a commit to the page")
        took = shown(browser, url, source, data, options.times)
        values = {"median s": statistics.median(took), "worst s": max(took)}
        report.row(
            count, "one more", values, miss=f"more than {SHOWN_SECONDS} s" if max(took) > SHOWN_SECONDS else None
        )
        columns = [Column("server %"), Column("browser %")]
        report.begin("idle", columns, about="Processor time of an open page, % of a core")
        _idle(browser, url, server.pid, options.seconds, report, count, "alone")
        arguments = ["run", "--source", str(source), "--data", str(data)]
        run(flowctl(*arguments, "--until-idle"))  # it processes what was ingested
        beside = subprocess.Popen(flowctl(*arguments), stderr=subprocess.DEVNULL)
        try:
            time.sleep(60)  # it begins, and seals all collections
            _idle(browser, url, server.pid, options.seconds, report, count, "beside a run")
        finally:
            end(beside)
        browser.close()


def _idle(browser: Any, url: str, server: int, seconds: float, report: Report, count: int, what: str) -> None:
    ours, theirs = idle(browser, url, server, seconds)
    miss = f"more than {IDLE_SHARE:.0%}" if ours > IDLE_SHARE else None
    report.row(count, what, {"server %": 100 * ours, "browser %": 100 * theirs}, miss=miss)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=20, help="ingestions of one document")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds to watch an idle page")
    parser.add_argument("--folder", type=Path, help="on which disk")
    parser.add_argument("--json", action="store_true", help="print a JSON object per row")
    options = parser.parse_args()
    if find_spec("playwright") is None or which("chromium") is None:
        print("the pages are passed over: Playwright or Chromium is not installed", file=sys.stderr)
        return 0
    report = Report(as_json=options.json)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        measure(options, report, Path(folder))
    return int(bool(report.missed))


if __name__ == "__main__":
    sys.exit(main())
