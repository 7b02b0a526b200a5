"""`flowctl ui` from outside, and its pages in Chromium if this machine has it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from conftest import write_catalog
from forked_flowctl import Flowctl, flowctl
from patience import PATIENCE_SECONDS
from ui_shop import CATALOG, SCRIPT, orders

from derive.cli.ui import command, pages_beside
from derive.errors import FlowError, UsageError

pytest.importorskip("uvicorn", reason="the extra `ui` is not installed")


@contextmanager
def served(folder: Path, *arguments: str) -> Iterator[str]:
    """Serve the pages of a folder; yield the URL. The server ends with SIGTERM and status 0."""
    command = ["ui", "--listen", "127.0.0.1:0", *arguments]
    pipe = subprocess.PIPE
    with Flowctl(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=folder) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, out) == (0, "")
    assert err == f"open the URL in a browser; stop with: kill {process.pid}\n"


def test_server_streams_a_commit_and_ends_while_a_page_is_open(tmp_path: Path) -> None:
    write_catalog(tmp_path, CATALOG)
    with served(tmp_path) as url, urllib.request.urlopen(f"{url}/events?since=") as events:
        first = [events.readline() for _ in range(4)]
        assert flowctl(tmp_path, "ingest", "--collection", "shop/orders", text='{"id": 1}')[0] == 0
        second = [events.readline() for _ in range(3)]
        with urllib.request.urlopen(url) as page:
            text = page.read().decode()
        request = urllib.request.Request(url, headers={"host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="421"):
            urllib.request.urlopen(request)

    assert (first[0], first[2], second[1]) == (b": begin\n", b"event: change\n", b"event: change\n")
    assert "1 document" in text


def test_server_encrypts_and_asks_for_the_token(tmp_path: Path) -> None:
    write_catalog(tmp_path, CATALOG)
    (tmp_path / "token").write_text("a-very-secret-token")
    (tmp_path / "token").chmod(0o600)
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "key.pem"]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2", "-out", "cert.pem"]
    subprocess.run(["openssl", "req", "-x509", *key, *subject], cwd=tmp_path, check=True, capture_output=True)
    context = ssl.create_default_context(cafile=tmp_path / "cert.pem")
    tls = ["--tls-certificate", "cert.pem", "--tls-key", "key.pem", "--token-file", "token"]
    with served(tmp_path, *tls) as url:
        assert url.startswith("https://127.0.0.1:")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url, context=context)
        request = urllib.request.Request(url, headers={"authorization": "Bearer a-very-secret-token"})
        with urllib.request.urlopen(request, context=context) as page:
            assert b"Catalog" in page.read()


def test_run_serves_pages_that_end_with_it(tmp_path: Path) -> None:
    write_catalog(tmp_path, CATALOG)
    status, _, err = flowctl(tmp_path, "run", "--until-idle", "--ui", "0.0.0.0:0")
    assert (status, "--ui takes an address of this machine" in err) == (2, True)
    with Flowctl(["run", "--ui", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stderr is not None
        url = next(line for line in process.stderr if line.startswith("web pages at ")).split()[-1]
        with urllib.request.urlopen(url) as page:
            assert b"shop/spending" in page.read()
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_SECONDS)
    while True:  # until the guard of the pages has ended them
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            break


def test_pages_beside_a_run_need_a_free_port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("derive.cli.ui._FREE_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(UsageError, match=f"--ui cannot listen at {listen}: Address already in use") as caught:
            pages_beside(listen, tmp_path / "flow.yaml", tmp_path).__enter__()
    assert "with --ui" in str(caught.value.hint)


def test_command_names_missing_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(FlowError, match="the pages need jinja2, which is not installed") as caught:
        command.main([], standalone_mode=False)

    assert caught.value.hint == "install the missing libraries: pip install jinja2"


def test_command_needs_a_catalog_or_a_data_folder(tmp_path: Path) -> None:
    status, out, err = flowctl(tmp_path, "ui", "--listen", "127.0.0.1:0")

    assert (status, out) == (1, "")
    assert "cannot load flow.yaml: No such file or directory" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "0.0.0.0:0"], "other machines can reach 0.0.0.0, so the pages need a secret"),
        (["--listen", "127.0.0.1"], "--listen takes HOST:PORT"),
        (["--data", "missing"], "does not exist"),
        (["--listen", "192.0.2.1:1", "--token-file", "t", "--tls-certificate", "c"], "the token file t cannot be read"),
    ],
)
def test_command_refuses_wrong_options(tmp_path: Path, arguments: list[str], message: str) -> None:
    write_catalog(tmp_path, CATALOG)

    status, out, err = flowctl(tmp_path, "ui", *arguments)

    assert (status, out) == (2, "")
    assert message in err


PAGES = [
    *("/", "/collections", "/collections/shop/orders?view=raw", "/collections/shop/spending", "/tasks"),
    *("/tasks/shop/spending", "/tasks/shop/broken", "/tasks/shop/reports", "/quarantine", "/nothing"),
    *('/why/collections/shop/spending?key=["ann"]', "/tests", "/sql"),
]


@pytest.mark.browser
def test_pages_in_a_browser_are_live_usable_and_without_errors(tmp_path: Path) -> None:
    """Screenshots go to the folder FLOW_SCREENSHOTS."""
    browsers = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("Chromium is not installed")
    write_catalog(tmp_path, CATALOG)
    assert flowctl(tmp_path, "ingest", "--collection", "shop/orders", text=orders(20_000_000))[0] == 0
    assert flowctl(tmp_path, "run", "--until-idle")[0] == 1
    with served(tmp_path) as url, browsers.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for width, scheme in ((1440, "light"), (390, "dark")):
            errors = _visit(browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme), url, width)
            # the browser reports the page that does not exist
            assert [error for error in errors if "404" not in error] == []
        _follow_commits(browser.new_page(viewport={"width": 390, "height": 900}), url, tmp_path)
        _read_at_a_time(browser.new_page(), url)
        _complete_a_name(browser.new_page(), url)
        _subscribe(browser.new_page(), url, tmp_path)
        browser.close()


def _visit(page: Any, url: str, width: int) -> list[str]:
    """Visit all pages; return the errors of the browser's console, and the texts of dialogs."""
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: errors.append(dialog.message))
    for number, path in enumerate(PAGES):
        _check(page, url + path, width)
        if shots := os.environ.get("FLOW_SCREENSHOTS"):
            page.screenshot(path=f"{shots}/{number:02}-{width}.png", full_page=True)
    _run_statement(page, url)
    if shots := os.environ.get("FLOW_SCREENSHOTS"):
        page.screenshot(path=f"{shots}/result-{width}.png", full_page=True)
    page.close()
    return errors


def _read_at_a_time(page: Any, url: str) -> None:
    """Check that the slider reads the documents at its time, and that the URL has the time."""
    latest = page.get_by_text('{"id":7}')
    page.goto(f"{url}/collections/shop/orders")
    latest.wait_for()
    page.locator("input[type=range]").press("Home")
    latest.wait_for(state="detached")
    assert 1 <= page.locator("#documents li").count() <= 5
    assert "as_of=20" in page.url
    page.go_back()
    latest.wait_for()


def _follow_commits(page: Any, url: str, folder: Path) -> None:
    """Check that the first page shows each commit once, and keeps the focus and the place of a scrolled picture."""
    requests: list[str] = []
    page.goto(url)
    page.on("request", lambda request: requests.append(request.url))
    page.locator("#node-shop\\/spending").focus()
    page.evaluate("document.querySelector('.picture').scrollLeft = 77")
    for number in range(5, 8):
        text = json.dumps({"id": number})
        assert flowctl(folder, "ingest", "--collection", "shop/orders", text=text)[0] == 0
        page.get_by_text(f"{number + 1} documents").first.wait_for(state="attached", timeout=10_000)
    assert page.evaluate("document.activeElement.id") == "node-shop/spending"
    assert page.evaluate("document.querySelector('.picture').scrollLeft") == 77
    loads = [request for request in requests if urlsplit(request).path == "/"]
    assert 3 <= len(loads) <= 9  # an ingestion is several commits


def _complete_a_name(page: Any, url: str) -> None:
    """Check that the editor completes a name by the keyboard alone, and that Tab leaves it."""
    with page.expect_response("**/sql/names"):
        page.goto(f"{url}/sql")
    page.keyboard.type("SELECT * FROM spend")
    page.get_by_role("option").first.wait_for()
    page.keyboard.press("ArrowDown")
    assert page.locator("[aria-selected=true]").inner_text() == '"shop/spending" collection'
    page.keyboard.press("Enter")
    assert page.locator("textarea").input_value() == 'SELECT * FROM "shop/spending"'
    page.keyboard.type(" WHERE sp")
    page.get_by_role("option").first.wait_for()
    page.keyboard.press("Escape")
    assert page.get_by_role("option").count() == 0
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Run"


def _subscribe(page: Any, url: str, folder: Path) -> None:
    """Check that rows of a subscription show as they come, and that going back does not begin it again."""
    page.goto(f"{url}/sql")
    page.locator("textarea").fill('SUBSCRIBE "shop/orders" WITH (SNAPSHOT = false)')
    page.get_by_role("button", name="Run").click()
    page.get_by_text("0 updates").wait_for()
    assert flowctl(folder, "ingest", "--collection", "shop/orders", text='{"id": 99}')[0] == 0
    page.get_by_text("1 update,").wait_for(timeout=10_000)
    assert page.get_by_role("cell", name="99", exact=True).count() == 1


def _check(page: Any, url: str, width: int) -> None:
    """Load a page, and check that it fits the width, and that the keyboard reaches its content."""
    page.goto(url)
    page.get_by_text("Loading the documents").wait_for(state="detached")
    assert page.evaluate("document.documentElement.scrollWidth") <= width, url
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") in ("skip", ""), url
    assert page.locator("script").count() == 4, url


def _run_statement(page: Any, url: str) -> None:
    page.goto(f"{url}/sql")
    page.locator("textarea").fill('SELECT * FROM "shop/spending"')
    page.get_by_role("button", name="Run").click()
    page.get_by_text(SCRIPT).first.wait_for()
