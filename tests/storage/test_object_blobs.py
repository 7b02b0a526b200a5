"""Blobs in an object store are stored once and read whole, whatever becomes of requests and answers."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable

import pytest
from object_server import Fault, Kind, ObjectServer, Stored

from derive.backoff import Backoff
from derive.errors import ObjectStoreError, StorageError, UnreachableError, UsageError
from derive.storage.location import ObjectFolder, blobs_of, claim, require_claimed, require_folder
from derive.storage.object_blobs import ObjectBlobs, RequestBudget, connect

pytest.importorskip("obstore")
BUDGET = RequestBudget(requests=4, seconds=60, backoff=Backoff(0, 0))


@pytest.fixture
def blobs(object_server: ObjectServer) -> ObjectBlobs:
    return connect("s3://flow/in", BUDGET)


def other(blobs: ObjectBlobs) -> ObjectBlobs:
    """The same objects for another process, which has read none."""
    return connect("s3://flow/in", BUDGET)


@pytest.mark.parametrize(
    ("kind", "requests"),
    [
        ("503", {"PUT": 2}),
        ("409", {"PUT": 2, "HEAD": 1}),  # there is no object, so another creation was under way
        ("refused", {"PUT": 2}),
        ("lost", {"PUT": 2, "HEAD": 1}),  # one's own object is recognized
    ],
)
def test_creation_is_repeated(
    blobs: ObjectBlobs, object_server: ObjectServer, kind: Kind, requests: dict[str, int]
) -> None:
    object_server.faults.append(Fault("PUT", kind))

    blobs.put("a", b"content")

    assert object_server.requests == requests
    assert other(blobs).get("a") == b"content"


def test_creation_after_a_lost_answer_finds_the_object_of_another_writer(
    blobs: ObjectBlobs,
    object_server: ObjectServer,
) -> None:
    blobs.put("a", b"content")
    object_server.faults.append(Fault("PUT", "refused"))

    for content in (b"changed", b"longer content"):
        with pytest.raises(FileExistsError):
            other(blobs).put("a", content)
    assert blobs.get("a") == b"content"


def test_creation_reads_an_object_whose_checksum_was_dropped(blobs: ObjectBlobs, object_server: ObjectServer) -> None:
    blobs.put("a", b"content")
    object_server.objects["in/a"].attributes.clear()

    blobs.put("a", b"content")
    with pytest.raises(FileExistsError):
        blobs.put("a", b"changed")


@pytest.mark.parametrize("kind", ["503", "refused", "cut"])
def test_reads_are_repeated(blobs: ObjectBlobs, object_server: ObjectServer, kind: Kind) -> None:
    blobs.put("a", b"content")
    object_server.faults.append(Fault("GET", kind, times=2))

    assert other(blobs).get("a", 1, 3) == b"ont"
    assert object_server.requests["GET"] == 3


def test_listing_goes_on_after_a_failed_page(blobs: ObjectBlobs, object_server: ObjectServer) -> None:
    object_server.page = 3
    for number in range(10):
        blobs.put(f"a/{number}", b"")
    object_server.faults.append(Fault("LIST", "503", after=2))

    assert blobs.list("a", "*") == [f"a/{number}" for number in range(10)]


def test_deletion_is_one_request_for_many_objects(blobs: ObjectBlobs, object_server: ObjectServer) -> None:
    for number in range(10):
        blobs.put(f"a/{number}", b"")
    object_server.faults.append(Fault("DELETE", "lost"))

    assert blobs.delete([f"a/{number}" for number in range(1, 12)]) == 11
    assert list(object_server.objects) == ["in/a/0"]
    assert object_server.requests["DELETE"] == 2


def test_only_names_with_the_beginning_are_listed(blobs: ObjectBlobs, object_server: ObjectServer) -> None:
    names = [f"in/c/x@/{number:04}-0.parquet" for number in range(3000)]
    for name in (*names, "in/c/x@2@/0050-1.parquet", "in/c/xy@/0050-2.parquet"):
        object_server.objects[name] = Stored(b"", {})

    assert blobs.list("c", "x@*/0050-*.parquet") == ["c/x@/0050-0.parquet", "c/x@2@/0050-1.parquet"]
    assert object_server.requests == {"LIST": 3}  # the folders, and one for each folder


def test_small_objects_are_opened_with_one_request_in_a_process(
    blobs: ObjectBlobs, object_server: ObjectServer
) -> None:
    blob = blobs.create("a")
    with blob.sink as sink:
        sink.write(b"content")
    blob.finish()
    reader = other(blobs)

    assert [reader.open("a", 7).read() for _ in range(3)] == [b"content"] * 3
    assert blobs.open("a", 7).read() == b"content"
    assert object_server.requests == {"PUT": 1, "GET": 1}


def test_large_objects_are_read_in_ranges(blobs: ObjectBlobs, object_server: ObjectServer) -> None:
    content = os.urandom(9 << 20)
    blobs.put("a", content)
    object_server.faults.append(Fault("GET", "cut"))

    with other(blobs).open("a", len(content)) as blob:
        assert blob.size() == len(content)
        assert blob.read_at(5, 1 << 20) == content[1 << 20 : (1 << 20) + 5]
        blob.seek(len(content) - 3)
        assert blob.read() == content[-3:]
    assert object_server.requests["GET"] == 3


def test_object_of_another_size_is_damaged(blobs: ObjectBlobs) -> None:
    blobs.put("a", b"content")
    with pytest.raises(OSError, match="it has 7 bytes instead of 8"):
        blobs.open("a", 8)


@pytest.mark.parametrize(
    ("method", "request_of"),
    [
        ("PUT", lambda blobs: blobs.put("a", b"content")),
        ("GET", lambda blobs: blobs.get("a")),
        ("HEAD", lambda blobs: blobs.open("a")),
        ("LIST", lambda blobs: blobs.list("a", "*")),
        ("DELETE", lambda blobs: blobs.delete(["a"])),
    ],
)
def test_budget_of_requests_ends(
    blobs: ObjectBlobs,
    object_server: ObjectServer,
    method: str,
    request_of: Callable[[ObjectBlobs], object],
) -> None:
    object_server.faults.append(Fault(method, "503", times=99))

    with pytest.raises(UnreachableError, match=r"cannot \w+ s3://flow/in/a.*503 Service Unavailable.*after 4 requests"):
        request_of(blobs)
    assert object_server.requests == Counter({method: 4})


def test_denied_request_is_not_repeated_and_names_no_secret(blobs: ObjectBlobs, object_server: ObjectServer) -> None:
    object_server.faults.append(Fault("PUT", "403"))

    with pytest.raises(ObjectStoreError) as caught:
        blobs.put("a", b"content")

    assert object_server.requests == {"PUT": 1}
    assert "give this process credentials" in str(caught.value)
    assert "flow-secret-key" not in f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("gs://bucket/a//b/", "gs://bucket/a/b"),
        ("az://container/a b", "az://container/a b"),
        ("file:///mnt/x", "file:///mnt/x"),
    ],
)
def test_location_is_a_plain_url(url: str, expected: str) -> None:
    assert str(ObjectFolder.of(url)) == expected


@pytest.mark.parametrize(
    "url",
    [
        *("bucket/prefix", "/mnt/x", "s3:/bucket", "s3://", "http://bucket/x", "file://host/x", "file:///", ""),
        *("s3://key:secret@bucket/x", "az://c/x?sig=secret", "s3://bucket:80/x", "s3://bucket/x#y", "s3://[x"),
    ],
)
def test_other_urls_are_refused_without_their_secrets(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        ObjectFolder.of(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("data", ["s3://bucket/x", "s3:/bucket/x", "gs://bucket", "file:///x"])
def test_data_folder_is_no_url(data: str) -> None:
    with pytest.raises(UsageError, match="--data DIR --segments URL"):
        require_folder(data)


def test_location_belongs_to_one_data_folder(object_server: ObjectServer) -> None:
    location = ObjectFolder("s3://flow/claimed")
    with pytest.raises(StorageError, match="has no segments of flowctl"):
        require_claimed(location, "one")
    for _ in range(2):
        claim(location, "one")
        require_claimed(location, "one")
    with pytest.raises(StorageError, match="the segments of another data folder"):
        claim(location, "two")
    with pytest.raises(StorageError, match="the segments of another data folder"):
        require_claimed(location, "two")


def test_checksum_of_a_new_object_is_that_of_its_bytes(blobs: ObjectBlobs) -> None:
    blob = blobs.create("a")
    blob.sink.write(b"content")
    assert blob.held == 7
    blob.sink.close()
    assert blob.finish() == (7, hashlib.sha256(b"content").hexdigest())


def test_blobs_of_a_url_share_connections() -> None:
    assert blobs_of(ObjectFolder("file:///x")) is blobs_of(ObjectFolder("file:///x"))
