"""The manifest of a backup: its files and their checksums, written after all other files are on the disk.

A folder without a manifest is no backup, or an incomplete backup.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from derive.document.clock import format_rfc3339
from derive.durable import sync
from derive.errors import UsageError

MANIFEST = "backup.json"
_FORM = 1


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a backup: its size in bytes, and its SHA-256 in hexadecimal digits."""

    bytes: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a backup.

    Attributes:
        folder: identifier of the data folder of the backup.
        former: identifiers of the folders that this data folder was restored from, the newest first.
        at: time of the backup, RFC 3339.
        files: files by path relative to the backup.
    """

    folder: str
    former: tuple[str, ...]
    at: str
    files: Mapping[str, StoredFile]


def present() -> str:
    """Return the present time, RFC 3339."""
    return format_rfc3339(time.time_ns() // 1000)


def file_checksum(path: Path) -> StoredFile:
    """Read a file and return its size and checksum."""
    with path.open("rb", buffering=0) as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    return StoredFile(path.stat().st_size, checksum)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write a manifest durably and atomically."""
    value = {
        "form": _FORM,
        "folder": manifest.folder,
        "former": list(manifest.former),
        "at": manifest.at,
        "files": {path: [file.bytes, file.checksum] for path, file in sorted(manifest.files.items())},
    }
    draft = folder / f"{MANIFEST}.new"
    draft.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2))
    sync(draft)
    draft.replace(folder / MANIFEST)
    sync(folder)


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a backup.

    Raises:
        UsageError: the folder is no backup, or its manifest is damaged.
    """
    try:
        value: Any = orjson.loads((folder / MANIFEST).read_bytes())
        files = {path: StoredFile(*file) for path, file in value["files"].items()}
        manifest = Manifest(value["folder"], tuple(value["former"]), value["at"], files)
    except (FileNotFoundError, NotADirectoryError):
        unfinished = folder.is_dir() and any(folder.iterdir())
        raise UsageError(
            f"{folder} is no backup: it has no {MANIFEST}",
            hint="the backup is incomplete: take another one" if unfinished else None,
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise UsageError(f"{folder / MANIFEST} is damaged: {exc}", hint="use another backup") from exc
    if value["form"] != _FORM:
        raise UsageError(f"{folder} has backup format {value['form']}, but this flowctl reads format {_FORM}")
    return manifest
