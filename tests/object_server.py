"""An object server with faults: S3's subset that `ObjectBlobs` uses, in memory.

Each fault is for the next requests of a method, whose key contains a text. A fault that answers nothing leaves the client
without knowledge whether the request took effect: `lost` after it did, `refused` before.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from patience import PATIENCE_SECONDS
from typing_extensions import override

Kind: TypeAlias = Literal["503", "409", "403", "lost", "refused", "cut"]
BUCKET = "flow"


@dataclass(slots=True)
class Fault:
    """A fault of some requests, after others that succeed."""

    method: str
    kind: Kind
    times: int = 1
    after: int = 0
    key: str = ""


@dataclass(frozen=True, slots=True)
class Stored:
    data: bytes
    attributes: dict[str, str]


@dataclass(slots=True)
class ObjectServer:
    """The objects of one bucket, and what was requested.

    Attributes:
        objects: objects by key.
        requests: number of requests by method: PUT, HEAD, GET, LIST, DELETE.
        faults: faults of the next requests.
        latency: seconds before each answer.
        page: greatest number of objects in a page of a listing.
        holds: text in the keys of objects whose creation is held until `go` is set; None to hold none.
        held: set when a creation is held.
        meeting: the first GET waits until another one has come; None to wait for none.
        landed: set when a creation that was held has taken effect.
    """

    objects: dict[str, Stored] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)
    latency: float = 0.0
    page: int = 1000
    holds: str | None = None
    held: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)
    landed: threading.Event = field(default_factory=threading.Event)
    turn: threading.Lock = field(default_factory=threading.Lock)
    meeting: threading.Event | None = None
    url: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a process reaches the server."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "flow-key-id",
            "AWS_SECRET_ACCESS_KEY": "flow-secret-key",
            "AWS_REGION": "us-east-1",
        }

    def fault(self, method: str, key: str) -> Kind | None:
        """Count a request, and return its fault."""
        with self.turn:
            self.requests[method] += 1
            for fault in self.faults:
                if fault.method == method and fault.key in key:
                    if fault.after:
                        fault.after -= 1
                        continue
                    fault.times -= 1
                    if not fault.times:
                        self.faults.remove(fault)
                    return fault.kind
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # one packet for each answer
    disable_nagle_algorithm = True
    store: ObjectServer

    @override
    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_PUT(self) -> None:
        data, key = self._body(), self._key()
        if self._fails("PUT", key):
            return
        with self.store.turn:
            exists = key in self.store.objects
            if not (exists and self.headers.get("If-None-Match") == "*"):
                names = [name for name in self.headers if name.lower().startswith("x-amz-meta-")]
                self.store.objects[key] = Stored(data, {name: self.headers[name] for name in names})
        if self.store.holds is not None and self.store.holds in key:
            self.store.landed.set()
        if self._kind == "lost":
            self.close_connection = True
        elif exists and self.headers.get("If-None-Match") == "*":
            self._answer(412, _error("PreconditionFailed"))
        else:
            self._answer(200, headers={"ETag": _tag(data)})

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            if not self._fails("LIST", query.get("prefix", [""])[0]):
                self._list({name: values[0] for name, values in query.items()})
            return
        key = self._key()
        if self._fails(self.command, key):
            return
        stored = self.store.objects.get(key)
        if stored is None:
            self._answer(404, _error("NoSuchKey"))
            return
        data, status, headers = stored.data, 200, {**stored.attributes, "ETag": _tag(stored.data)}
        if wanted := self.headers.get("Range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last) + 1 if last else len(data), len(data))
            if begin >= len(data):
                self._answer(416, _error("InvalidRange"))
                return
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(data)}"
            data, status = data[begin:end], 206
        self._answer(status, data, headers)

    do_HEAD = do_GET  # noqa: N815

    def do_DELETE(self) -> None:
        if not self._fails("DELETE", self._key()):
            with self.store.turn:
                self.store.objects.pop(self._key(), None)
            self._answer(204)

    def do_POST(self) -> None:
        tree = ElementTree.fromstring(self._body())
        if self._fails("DELETE", ""):
            return
        keys = [element.text or "" for element in tree.iter() if element.tag.rpartition("}")[2] == "Key"]
        with self.store.turn:
            for key in keys:
                self.store.objects.pop(key, None)
        if self._kind == "lost":
            self.close_connection = True
            return
        deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def _list(self, query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token", query.get("start-after", ""))
        entries: dict[str, int | None] = {}  # size of an object, or None for a common prefix
        with self.store.turn:
            for key in sorted(key for key in self.store.objects if key.startswith(prefix)):
                below = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
                name = f"{prefix}{below[0]}{delimiter}" if below[1] else key
                if name > after:
                    entries.setdefault(name, None if below[1] else len(self.store.objects[key].data))
        page = dict(list(entries.items())[: self.store.page])
        parts = [
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
            if size is None
            else f"<Contents><Key>{escape(name)}</Key><Size>{size}</Size><ETag>x</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for name, size in page.items()
        ]
        if len(page) < len(entries):
            token = escape(list(page)[-1])
            parts.append(f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>")
        self._answer(200, f"<ListBucketResult>{''.join(parts)}</ListBucketResult>".encode())

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}/")

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", "0")))

    def _fails(self, method: str, key: str) -> bool:
        """Answer a request that has a fault, except one whose answer is lost or cut; return true if it is answered."""
        store = self.store
        if store.latency:
            threading.Event().wait(store.latency)
        self._kind = store.fault(method, key)
        if store.meeting is not None and method == "GET":
            if store.requests[method] > 1:
                store.meeting.set()
            store.meeting.wait(PATIENCE_SECONDS)
        if store.holds is not None and method == "PUT" and store.holds in key and not store.go.is_set():
            store.held.set()
            store.go.wait(PATIENCE_SECONDS)
        if self._kind in {"503", "409", "403"}:
            self._answer(
                int(self._kind), _error({"503": "SlowDown", "409": "Conflict", "403": "AccessDenied"}[self._kind])
            )
        elif self._kind == "refused":
            self.close_connection = True
        return self._kind not in {None, "lost", "cut"}

    def _answer(self, status: int, data: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Last-Modified", formatdate(usegmt=True))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if self._kind == "cut" else data)
        if self._kind == "cut":
            self.close_connection = True


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()


@contextmanager
def serving() -> Iterator[ObjectServer]:
    """Serve a new bucket on a free port of this machine."""
    store = ObjectServer()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"store": store}))
    server.daemon_threads = True
    store.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield store
    finally:
        store.go.set()
        server.shutdown()
        thread.join()
        server.server_close()
