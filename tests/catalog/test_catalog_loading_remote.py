"""Resources at http(s) addresses: what is there is loaded, and what is not is said, soon."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from derive.catalog.loading.loader import Loader
from derive.catalog.loading.resources import Resources
from derive.errors import Issue

PAGES = {
    "/flow.yaml": b"import: [sub/more.yaml]\n",
    "/sub/more.yaml": b"import: [../flow.yaml]\ncollections:\n  a/b: {schema: b.schema.yaml, key: [/id]}\n",
    "/sub/b.schema.yaml": b"type: object\nproperties: {id: {type: integer}}\n",
    "/latin": b"\xe9",
    "/import.yaml": b"import: ['file:///dev/null']\n",
    "/schema.yaml": b"collections: {a/b: {key: [/id], schema: 'file:///dev/null'}}\n",
    "/inner.yaml": b"collections: {a/b: {key: [/id], schema: {$ref: 'file:///dev/null'}}}\n",
    "/named.yaml": b"collections: {a/b: {key: [/id], schema: {$id: 'file:///dev/x', $ref: 'file:///dev/null'}}}\n",
    "/sql.yaml": b"""collections:
  a/b: {key: [/id], schema: {type: object, required: [id], properties: {id: {type: integer}}}}
  a/c:
    key: [/id]
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    derive:
      using: {sqlite: {}}
      transforms: [{name: t, source: a/b, shuffle: any, lambda: 'file:///dev/null'}]
""",
}


class Pages(BaseHTTPRequestHandler):
    """Serves `PAGES`; `/silent` never answers, `/slow` drips, `/short` stops early, `/endless` never stops.

    `/noise` is no HTTP.
    """

    over = threading.Event()

    def do_GET(self) -> None:
        if self.path == "/silent":
            self.over.wait(10)
            return
        if self.path == "/noise":
            self.wfile.write(b"no HTTP at all\r\n\r\n")
            return
        page = PAGES.get(self.path)
        if page is None and self.path not in ("/slow", "/short", "/endless"):
            self.send_error(404)
            return
        self.send_response(200)
        if self.path != "/endless":
            self.send_header("Content-Length", str(len(page or b"") or 1000))
        self.end_headers()
        self.wfile.write(page or b"a")
        while self.path == "/endless" and not self.over.is_set():
            try:
                self.wfile.write(bytes(1 << 20))
            except OSError:
                return
        while self.path == "/slow" and not self.over.wait(0.05):
            self.wfile.write(b"a")

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:  # of clients that have gone away
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    Pages.over.clear()
    with Server(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        Pages.over.set()
        server.shutdown()
        thread.join()


def issue_of(folder: Path, reference: str, seconds: float = 5) -> Issue:
    (folder / "flow.yaml").write_text(f"import: ['{reference}']\n")
    loader = Loader(Resources(seconds=seconds))
    loader.load(folder / "flow.yaml")
    [issue] = loader.report.issues
    assert loader.incomplete
    return issue


def test_catalogs_and_what_they_refer_to_may_be_remote(tmp_path: Path, address: str) -> None:
    (tmp_path / "flow.yaml").write_text(f"import: ['{address}/flow.yaml']\n")
    loader = Loader()

    catalog = loader.load(tmp_path / "flow.yaml")

    assert loader.report.issues == []
    assert catalog.collections["a/b"].write.schema == {"type": "object", "properties": {"id": {"type": "integer"}}}
    assert catalog.collections["a/b"].at.position.file == f"{address}/sub/more.yaml"


@pytest.mark.parametrize(
    ("path", "seconds", "said"),
    [
        ("/gone.yaml", 5, "HTTP 404 Not Found"),
        # no answer, and an answer that never ends, one byte at a time
        ("/silent", 0.3, "timed out"),
        ("/slow", 0.3, "timed out"),
        ("/short", 5, "the answer ends after 1 of 1000 bytes"),
        ("/endless", 30, "it has more than 32 MiB, the limit of a file that a catalog names"),
        ("/noise", 5, "no sensible answer: BadStatusLine"),
        ("/latin", 5, "it is not UTF-8 text (byte 0)"),
    ],
)
def test_what_cannot_be_loaded(path: str, seconds: float, said: str, tmp_path: Path, address: str) -> None:
    issue = issue_of(tmp_path, address + path, seconds)

    assert (issue.code, issue.message) == ("E003", f"cannot load {address}{path}: {said}")
    assert (issue.position.line, issue.position.column) == (1, 10)


@pytest.mark.parametrize(
    "reference", ["http://[::1/flow.yaml", "http://127.0.0.1:port/", "http://127.0.0.1:1/", "a\\0b"]
)
def test_what_is_no_address(reference: str, tmp_path: Path) -> None:
    assert issue_of(tmp_path, reference).code == "E003"


@pytest.mark.parametrize("page", ["import", "schema", "inner", "named", "sql"])
def test_a_remote_catalog_names_no_file_of_this_machine(page: str, tmp_path: Path, address: str) -> None:
    (tmp_path / "flow.yaml").write_text(f"import: ['{address}/{page}.yaml']\n")
    loader = Loader()
    loader.load(tmp_path / "flow.yaml")

    [issue] = loader.report.issues
    assert issue.code == "E003"
    assert issue.message.endswith("a catalog at an http(s) address may name files at such addresses only")


@pytest.mark.parametrize("reference", ["/dev/zero", "file:///dev/zero"])
@pytest.mark.parametrize(
    "text",
    [
        "import: ['{}']\n",
        "collections: {{a/b: {{key: [/id], schema: '{}'}}}}\n",
        "collections: {{a/b: {{key: [/id], schema: {{$ref: '{}'}}}}}}\n",
        "tests: {{a/b: [{{ingest: {{collection: a/b, documents: '{}'}}}}]}}\n",
    ],
)
def test_a_file_without_an_end_is_refused(text: str, reference: str, tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(text.format(reference))
    loader = Loader()
    loader.load(tmp_path / "flow.yaml")

    assert [issue.message.partition(": ")[2] for issue in loader.report.issues] == [
        "it has more than 32 MiB, the limit of a file that a catalog names"
    ]


def test_a_local_schema_may_name_a_file_by_its_url(tmp_path: Path) -> None:
    schema = tmp_path / "b c.schema.yaml"
    schema.write_text("type: object\nproperties: {id: {type: integer}}\n")
    url = schema.as_uri()
    (tmp_path / "flow.yaml").write_text(f"collections: {{a/b: {{key: [/id], schema: '{url}'}}}}\n")
    loader = Loader()

    catalog = loader.load(tmp_path / "flow.yaml")

    assert loader.report.issues == []
    assert catalog.collections["a/b"].write.positions["/properties/id"].line == 2
