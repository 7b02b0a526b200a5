"""Blobs as objects of an object store: S3, Google Cloud Storage, Azure, and servers that speak one of their protocols.

A request can fail after it took effect, because its answer was lost. Reads and deletions are repeated. A creation is
repeated too: if the object then exists, its size and its checksum, which is stored beside it, tell one's own object
from the object of another writer. So each name is created once, and no object is ever written again.

Objects never change. A process keeps the segments that it has written or opened last in memory: the next reader in the
process, such as a derivation that reads another one, needs no request. `get` always asks the store.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from typing_extensions import override

from derive.backoff import Backoff
from derive.errors import ObjectStoreError, UnreachableError, UsageError
from derive.interrupts import AbandonedError, made, pause
from derive.plural import counted
from derive.storage.blobs import NewBlob

if TYPE_CHECKING:
    from obstore.store import ObjectStore

WHOLE_BYTES = 8 << 20
"""Objects of at most this size are read whole, in one request."""

_RECENT_BYTES = 32 << 20
_PAGE = 1000
"""Number of objects in a page of a listing, and in a batch of a deletion."""

_DIGEST = "sha256"
"""Name of the checksum among the attributes of an object."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RequestBudget:
    """The limits of an operation on an object store.

    Attributes:
        requests: greatest number of requests that may fail.
        seconds: time after which no further request is tried.
        backoff: pauses between requests.
    """

    requests: int = 12
    seconds: float = 60.0
    backoff: Backoff = field(default_factory=lambda: Backoff(0.05, 8.0, jitter=0.5))


class _ConflictError(Exception):
    """An object neither exists nor could be created, because another creation was under way."""


class _Recent:
    """The objects that a process has used last, up to a number of bytes; safe for threads."""

    def __init__(self, most_bytes: int) -> None:
        self._most, self._size = most_bytes, 0
        self._objects: dict[str, pa.Buffer] = {}  # ordered by use, the latest last
        self._turn = threading.Lock()

    def get(self, path: str) -> pa.Buffer | None:
        with self._turn:
            data = self._objects.pop(path, None)
            if data is not None:
                self._objects[path] = data
            return data

    def put(self, path: str, data: pa.Buffer) -> None:
        with self._turn:
            self._forget(path)
            if data.size > self._most // 4:
                return
            self._objects[path] = data
            self._size += data.size
            while self._size > self._most:
                self._forget(next(iter(self._objects)))

    def forget(self, paths: Iterable[str]) -> None:
        with self._turn:
            for path in paths:
                self._forget(path)

    def _forget(self, path: str) -> None:
        data = self._objects.pop(path, None)
        self._size -= 0 if data is None else data.size


@dataclass(frozen=True, slots=True)
class _NewObject:
    """An object in writing, which is held in memory until one request stores it."""

    blobs: ObjectBlobs
    path: str
    sink: pa.BufferOutputStream

    @property
    def held(self) -> int:
        """Return the number of bytes in memory."""
        return 0 if self.sink.closed else int(self.sink.tell())

    def finish(self) -> tuple[int, str]:
        """Store the object."""
        data = self.sink.getvalue()
        return data.size, self.blobs.store(self.path, data, is_recent=True)


class _Ranges(io.RawIOBase):
    """A large object as a file; each read is one request."""

    def __init__(self, blobs: ObjectBlobs, path: str, size: int) -> None:
        self._blobs, self._path, self._size, self._at = blobs, path, size, 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    @override
    def read(self, size: int | None = -1) -> bytes:
        length = self._size - self._at
        if size is not None and size >= 0:
            length = min(size, length)
        data = self._blobs.get(self._path, self._at, length) if length > 0 else b""
        self._at += len(data)
        return data


class ObjectBlobs:
    """Blobs as objects below the folder of a URL.

    Args:
        client: client of obstore for this folder, which repeats no requests itself.
        url: the URL, for messages.
        budget: limits of each operation.

    Raises:
        UnreachableError: by each method, the budget is exhausted.
        ObjectStoreError: by each method, the store refuses the request.
    """

    def __init__(self, client: ObjectStore, url: str, budget: RequestBudget | None = None) -> None:
        self._client, self._url, self._budget = client, url, budget or RequestBudget()
        self._recent = _Recent(_RECENT_BYTES)

    @property
    def is_local(self) -> bool:
        """Return false."""
        return False

    def create(self, path: str) -> NewBlob:
        """Begin an object, which exists once it is finished."""
        return _NewObject(self, path, pa.BufferOutputStream())

    def put(self, path: str, data: bytes) -> None:
        """Create an object, or find that it exists with these bytes."""
        self.store(path, pa.py_buffer(data))

    def store(self, path: str, data: pa.Buffer, *, is_recent: bool = False) -> str:
        """Create an object like `put`, and return its checksum.

        Args:
            path: path of the object.
            data: its bytes.
            is_recent: whether this process will probably open the object, so that it keeps the bytes.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        digest, content = hashlib.sha256(data).hexdigest(), memoryview(data).cast("B")

        def create() -> None:
            try:
                obstore.put(
                    self._client, path, content, attributes={_DIGEST: digest}, mode="create", use_multipart=False
                )
            except (AlreadyExistsError, PreconditionError):
                self._require_stored(path, data.size, digest)

        self._tried("store", path, create)
        if is_recent:
            self._recent.put(path, data)
        return digest

    def _require_stored(self, path: str, size: int, digest: str) -> None:
        """Raise an error unless an object has a size and a checksum.

        Raises:
            FileExistsError: the object has other bytes.
            _ConflictError: there is no object.
        """
        import obstore

        try:
            stored = obstore.get(self._client, path, options={"head": True})
            if stored.meta["size"] == size:
                known = stored.attributes.get(_DIGEST)  # absent if a proxy or the store drops it
                if digest == (known or hashlib.sha256(obstore.get(self._client, path).bytes()).hexdigest()):
                    return
        except FileNotFoundError:
            raise _ConflictError("another creation of the object was under way") from None
        raise FileExistsError(errno.EEXIST, "the object exists with other bytes", f"{self._url}/{path}")

    def get(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Read an object, or a part of it, in one request."""
        if length == 0:
            self._size(path)
            return b""
        try:
            return bytes(self._fetched(path, offset, length))
        except UnreachableError:
            raise
        except ObjectStoreError:
            if offset > 0 and offset >= self._size(path):
                return b""
            raise

    def _fetched(self, path: str, offset: int = 0, length: int | None = None) -> Any:
        """Return the bytes of an object or of a part of it as a buffer."""
        import obstore

        options: Any = {}
        if offset or length is not None:
            options["range"] = {"offset": offset} if length is None else (offset, offset + length)
        return self._tried("read", path, lambda: obstore.get(self._client, path, options=options).bytes())

    def _size(self, path: str) -> int:
        import obstore

        return self._tried("read", path, lambda: int(obstore.head(self._client, path)["size"]))

    def open(self, path: str, size: int | None = None) -> pa.NativeFile:
        """Open an object: a small one is read whole, and of a large one the ranges that the caller reads.

        Raises:
            OSError: the object does not have the size.
        """
        data = self._recent.get(path)
        if data is None:
            if size is None:
                size = self._size(path)
            if size > WHOLE_BYTES:
                return pa.PythonFile(_Ranges(self, path, size), "r")
            data = pa.py_buffer(self._fetched(path))
            self._recent.put(path, data)
        if size is not None and data.size != size:
            raise OSError(f"it has {counted(data.size, 'byte')} instead of {size:,}")
        return pa.BufferReader(data)

    def list(self, folder: str, pattern: str) -> list[str]:
        """Return the objects below a folder that match a pattern.

        Only names that begin with the pattern's text before its first wildcard are listed.
        """
        return sorted(self._matching("", f"{folder}/{pattern}".split("/")))

    def _matching(self, folder: str, pattern: Sequence[str]) -> Iterator[str]:
        """Yield the objects below a folder that match the parts of a pattern."""
        count = next((number for number, part in enumerate(pattern) if "*" in part), len(pattern) - 1)
        folder, pattern = "/".join([*([folder] if folder else []), *pattern[:count]]), pattern[count:]
        desired = _expression(f"{folder}/{'/'.join(pattern)}")
        if pattern[0] == "**":
            yield from filter(desired.fullmatch, self._listed(folder, f"{folder}/"))
        elif len(pattern) == 1:
            yield from filter(desired.fullmatch, self._listed(folder, f"{folder}/{pattern[0].partition('*')[0]}"))
        else:
            import obstore

            part = _expression(f"{folder}/{pattern[0]}")
            listing = self._tried("list", folder, lambda: obstore.list_with_delimiter(self._client, folder))
            for below in filter(part.fullmatch, listing["common_prefixes"]):
                yield from self._matching(below, pattern[1:])

    def _listed(self, folder: str, start: str) -> Iterator[str]:
        """Yield the objects below a folder whose paths begin with a text, in order."""
        import obstore

        last, pages = start, None

        def page() -> Any:
            nonlocal pages
            try:
                if pages is None:  # a listing that failed goes on after its last object
                    pages = iter(obstore.list(self._client, folder, offset=last, chunk_size=_PAGE))
                return next(pages, None)
            except BaseException:
                pages = None
                raise

        while objects := self._tried("list", folder, page):
            for stored in objects:
                last = stored["path"]
                if not last.startswith(start):
                    return
                yield last

    def delete(self, paths: Iterable[str]) -> int:
        """Delete objects, in batches."""
        names = list(paths)
        self._recent.forget(names)
        for begin in range(0, len(names), _PAGE):
            self._delete(names[begin : begin + _PAGE])
        return len(names)

    def _delete(self, paths: Sequence[str]) -> None:
        import obstore

        try:
            self._tried("delete", paths[0], lambda: obstore.delete(self._client, paths))
        except FileNotFoundError:  # a store that deletes one object at a time stops at a missing one
            for path in paths:
                with suppress(FileNotFoundError):
                    self._tried("delete", path, partial(obstore.delete, self._client, path))

    def _tried(self, verb: str, path: str, request: Callable[[], T]) -> T:
        """Return the result of a request, which is repeated while the store fails for a time."""
        from obstore.exceptions import BaseError

        begin, failures = time.monotonic(), 0
        while True:
            try:
                return made(request)
            except AbandonedError:
                raise self._abandoned(verb, path) from None
            except FileNotFoundError:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{self._url}/{path}") from None
            except (BaseError, _ConflictError) as exc:
                failures += 1
                error = failure_of(f"cannot {verb} {self._url}/{path}", exc)
                is_over = failures >= self._budget.requests or time.monotonic() - begin >= self._budget.seconds
            # The client's error is not chained, because it may quote a URL that is signed.
            if not isinstance(error, UnreachableError):
                raise error
            if is_over:
                error.message += f", after {counted(failures, 'request')} in {time.monotonic() - begin:.0f} s"
                raise error
            try:
                pause(self._budget.backoff.pause(failures))
            except AbandonedError:
                raise self._abandoned(verb, path) from None

    def _abandoned(self, verb: str, path: str) -> UnreachableError:
        return UnreachableError(f"cannot {verb} {self._url}/{path}: the request was abandoned after Ctrl-C")


_PERFORMING = re.compile(r"(?:Generic \w+ error: )?Error performing (\w+) (https?://[^/ ]+)\S* in \S+ - ")
_STATUS = re.compile(r"status code: (\d{3})|(\d{3}) (?:Bad|Forbidden|Unauthorized|Not|Method|Precondition)")
_TRANSIENT = frozenset({408, 409, 425, 429})
_NO_CREDENTIALS = re.compile(r"169\.254\.|metadata\.google\.internal|credential", re.IGNORECASE)
_NO_RANGE = re.compile(r"\brange starting at\b|invalid range", re.IGNORECASE)
_SECRET = re.compile(r"KEY|SECRET|TOKEN|PASSWORD|SAS")


def failure_of(what: str, cause: Exception) -> ObjectStoreError:
    """Return the error of a request that failed: an `UnreachableError` if a repetition may succeed.

    Args:
        what: description of the request.
        cause: error of the client.
    """
    from obstore.exceptions import GenericError, PermissionDeniedError, UnauthenticatedError

    text = _PERFORMING.sub(r"\1 at \2: ", _without_secrets(str(cause).partition("\n")[0]))
    status = _STATUS.search(text)
    code = int(next(filter(None, status.groups()))) if status else 0
    if isinstance(cause, (PermissionDeniedError, UnauthenticatedError)) or _NO_CREDENTIALS.search(text):
        return ObjectStoreError(
            f"{what}: {text}",
            hint="give this process credentials that may read, write, list and delete there: by environment variables,"
            " a profile, or the role of its machine",
        )
    is_transient = isinstance(cause, (GenericError, _ConflictError)) and (code // 100 != 4 or code in _TRANSIENT)
    if not is_transient or _NO_RANGE.search(text):
        return ObjectStoreError(f"{what}: {text}", hint="check the bucket, its region and the endpoint")
    return UnreachableError(
        f"{what}: {text}", hint="a run repeats the work once the object store answers; repeat other commands"
    )


def _without_secrets(text: str) -> str:
    """Return a text without the queries of URLs, which may be signed, and without values of secret variables."""
    text = re.sub(r"\?[^\s\"')]*=[^\s\"')]*", "", text)
    for name, value in os.environ.items():
        if len(value) >= 8 and _SECRET.search(name):
            text = text.replace(value, "…")
    return text


def _expression(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a pathlib pattern with the wildcards `**/` and `*`."""
    parts = re.split(r"(\*\*/|\*)", pattern)
    return re.compile("".join({"**/": "(?:[^/]+/)*", "*": "[^/]*"}.get(part) or re.escape(part) for part in parts))


def connect(url: str, budget: RequestBudget | None = None) -> ObjectBlobs:
    """Return the blobs below a URL, with credentials from the environment of this process.

    Raises:
        UsageError: the package `obstore` is missing, or the environment is incomplete.
    """
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    endpoints = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    endpoint = next(filter(None, map(os.environ.get, endpoints)), "") if url.startswith("s3:") else ""
    options: dict[str, Any] = {"client_options": {"timeout": "120s", "connect_timeout": "10s"}}
    if endpoint:
        options["endpoint"] = endpoint
        options["client_options"]["allow_http"] = endpoint.startswith("http:")
    if url.startswith("s3:") and "AWS_PROFILE" in os.environ and "AWS_ACCESS_KEY_ID" not in os.environ:
        options["credential_provider"] = _profile_credentials()
    try:
        client = from_url(url, retry_config={"max_retries": 0}, **options)
    except (BaseError, ValueError) as exc:
        raise UsageError(f"{url} cannot be opened: {_without_secrets(str(exc).partition(chr(10))[0])}") from None
    return ObjectBlobs(client, url, budget)


def _profile_credentials() -> Any:
    """Return the credentials of the profile that AWS_PROFILE names."""
    try:
        from boto3 import Session
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as exc:
        raise UsageError(
            "AWS_PROFILE is set, but a profile can be read only with the package boto3",
            hint='pip install boto3; or export the credentials of the profile as environment variables: eval "$(aws'
            ' configure export-credentials --format env)"',
        ) from exc
    return Boto3CredentialProvider(Session())
