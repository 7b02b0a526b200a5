"""Locations of segments: the data folder itself, or a folder of an object store.

A location is a small value, so plans carry it to workers. The credentials of an object store are not part of it: each
process takes them from its environment.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from derive.durable import clone, make_folders
from derive.errors import StorageError, UsageError
from derive.storage.blobs import Blobs, LocalBlobs, translated

SCHEMES = ("s3", "gs", "az", "file")
"""Schemes of URLs of locations."""

_SHOWN = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///PATH"
_PRIVATE = 0o700
"""Mode of a created folder of segments: documents are private, so other users have no access."""

_CLIENTS = 8
"""Number of object stores whose connections a process keeps."""


@dataclass(frozen=True, slots=True)
class ObjectFolder:
    """A folder of an object store.

    >>> ObjectFolder.of("s3://bucket/flow/").url
    's3://bucket/flow'

    Attributes:
        url: URL of the folder, without a slash at its end.
    """

    url: str

    @staticmethod
    def of(url: str) -> ObjectFolder:
        """Return the folder that a user's URL names.

        Raises:
            UsageError: the URL has another scheme, no bucket, or parts that it cannot have.
        """
        try:
            parts = urlsplit(url)
            is_plain = not (parts.query or parts.fragment or parts.password or parts.username or parts.port)
        except ValueError:
            raise UsageError("the URL of segments cannot be parsed", hint=f"name {_SHOWN}") from None
        if not is_plain:
            raise UsageError(
                "the URL of segments has parts besides bucket and prefix",
                hint="pass credentials and endpoints by the environment of the process, not by the URL",
            )
        is_complete = parts.path.strip("/") and not parts.netloc if parts.scheme == "file" else parts.netloc
        if parts.scheme not in SCHEMES or not is_complete:
            raise UsageError(f"segments cannot be kept at {url!r}", hint=f"name {_SHOWN}")
        return ObjectFolder(f"{parts.scheme}://{parts.netloc}{re.sub('/+', '/', parts.path).rstrip('/')}")

    def __truediv__(self, path: str) -> ObjectFolder:
        """Return the URL of a blob below this folder."""
        return ObjectFolder(f"{self.url}/{path}")

    def __str__(self) -> str:
        return self.url


Location: TypeAlias = Path | ObjectFolder
"""Where segments are: a local folder, or a folder of an object store. A path of a segment is relative to it."""


_URL = re.compile(r"[a-z][a-z0-9+.-]+:/")


def is_url(data: str | Path) -> bool:
    """Return true if a user names a URL as the data folder."""
    return _URL.match(str(data)) is not None


def require_folder(data: str | Path) -> None:
    """Raise an error if a user names a URL where the data folder is needed.

    Raises:
        UsageError: a URL was named.
    """
    if scheme := _URL.match(str(data)):  # the rest may have a password
        raise UsageError(
            f"the data folder cannot be at {scheme.group()}…, because it has databases",
            hint="name a local folder, and keep only the segments of collections at the URL: --data DIR --segments URL;"
            " or keep the metadata in PostgreSQL: --metadata postgresql://HOST/DATABASE",
        )


def blobs_of(location: Location) -> Blobs:
    """Return the blobs at a location; those of an object store share connections within the process."""
    return LocalBlobs(location) if isinstance(location, Path) else connected(location.url)


def fetch(location: Location, path: str, target: Path) -> None:
    """Copy a blob into a new file, and sync the file; the caller syncs the folder.

    Raises:
        FileNotFoundError: no blob has this path.
        FileExistsError: the file exists.
    """
    if isinstance(location, Path):
        clone(location / path, target)
        return
    data = blobs_of(location).get(path)
    with target.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


_MARKER = "folder-id"
"""Path of the blob that names the data folder whose segments are at a location."""


def claim(location: ObjectFolder, identifier: str) -> None:
    """Mark a location as that of a data folder's segments.

    Raises:
        StorageError: the location has the segments of another data folder, or cannot be written.
    """
    blobs = blobs_of(location)
    with translated(str(location)):
        if isinstance(blobs, LocalBlobs):
            make_folders(blobs.root, _PRIVATE)
        try:
            blobs.put(_MARKER, identifier.encode())
        except FileExistsError:
            raise _foreign(location) from None


def require_claimed(location: ObjectFolder, identifier: str) -> None:
    """Raise an error unless a location is marked as that of a data folder's segments.

    Raises:
        StorageError: the location has the segments of another data folder, or none, or cannot be read.
    """
    with translated(str(location)):
        try:
            known = blobs_of(location).get(_MARKER).decode()
        except FileNotFoundError:
            raise StorageError(f"{location} has no segments of flowctl: it has no {_MARKER}") from None
    if known != identifier:
        raise _foreign(location)


def _foreign(location: ObjectFolder) -> StorageError:
    return StorageError(f"{location} has the segments of another data folder", hint="name another bucket or prefix")


@lru_cache(maxsize=_CLIENTS)
def connected(url: str) -> Blobs:
    """Return the blobs below a URL, with the environment of the first call."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return LocalBlobs(Path(unquote(parts.path)))
    from derive.storage.object_blobs import connect

    return connect(url)
