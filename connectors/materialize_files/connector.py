"""The connector: its configuration, the constraints of its formats, and sessions that write files.

Rows are written to staged files, which are hidden from readers. The commit creates a version of the manifest that names
the files, and then renames the files to their final names. The next session renames remaining files, so readers see
each file of a transaction once, or no file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4
from zlib import crc32

from connectors.kit import (
    Application,
    ConnectorSpec,
    Constraint,
    ConstraintType,
    DriverCheckpoint,
    Field,
    Opening,
    StoredRows,
    ValidatedBinding,
    Validation,
    Value,
)
from connectors.materialize_files.formats import DELETED, FORMATS, Sink, kind_of
from connectors.materialize_files.manifest import Manifest, Shard, Version, reporting
from derive.document.pointer import JSON
from derive.durable import make_folders, sync
from derive.errors import DeniedError, EndpointError

HIDDEN = ".flow"
"""Name of the hidden folder in an endpoint's folder, with all files except output."""

_STAGED = ".staged"


def folder_of(root: Path, materialization: str) -> Path:
    """Return the folder of a materialization's state."""
    return root / HIDDEN / quote(materialization, safe="")


class FilesSession:
    """Transactions of one range of keys.

    Attributes:
        checkpoint: the last committed checkpoint.
        narrower: the last committed checkpoints of ranges within the session's range.
    """

    def __init__(self, opening: Opening, root: Path) -> None:
        spec = opening.materialization
        self._root = root
        self._bindings = spec.bindings
        self._range = f"{opening.key_begin:08x}-{opening.key_end:08x}"
        self._whose = f"{crc32(spec.name.encode()):08x}"
        self._staging = folder_of(root, spec.name) / "staged"
        self._manifest = Manifest(folder_of(root, spec.name), spec.name)
        self._sinks: dict[int, Sink] = {}
        self._next_checkpoint = ""
        with reporting(f"cannot open '{spec.name}' in {root}"):
            version = self._manifest.open(opening.key_begin, opening.key_end, uuid4().hex)
            self._epoch = version.number
            shard = version.of(opening.key_begin, opening.key_end)
            assert shard is not None
            self._shard = shard
            make_folders(self._staging)
            self._clean_up(version)
        self.checkpoint = bytes.fromhex(self._shard.checkpoint)
        narrower = version.narrower(opening.key_begin, opening.key_end)
        self.narrower = [bytes.fromhex(shard.checkpoint) for shard in narrower if shard.checkpoint]

    def load(self, binding: int, keys: Sequence[tuple[Value, ...]]) -> None:
        """Raise an error: all bindings have delta updates."""
        raise EndpointError("files have delta updates only")

    def loaded(self) -> Iterator[tuple[int, Sequence[bytes]]]:
        """Return an empty iterator: no documents are loaded."""
        return iter(())

    def prepare(self, flow_checkpoint: bytes) -> DriverCheckpoint | None:
        """Accept the checkpoint."""
        self._next_checkpoint = flow_checkpoint.hex()
        return None

    def store(self, binding: int, rows: StoredRows) -> None:
        """Write rows to staged files."""
        with reporting(f"cannot write to {self._staging}"):
            if binding not in self._sinks:
                make = FORMATS[self._bindings[binding].resource["format"]]
                self._sinks[binding] = make(self._staging / self._staged(binding), self._bindings[binding])
            self._sinks[binding].add(rows)

    def commit(self) -> None:
        """Create a version of the manifest that names the files, and rename the files."""
        sinks, self._sinks = self._sinks, {}
        with reporting(f"cannot commit in {self._root}"):
            for binding, sink in sinks.items():
                sink.close()
                self._sync(self._staging / self._staged(binding))
            if sinks:
                sync(self._staging)
            shard = replace(
                self._shard,
                checkpoint=self._next_checkpoint,
                transaction=self._shard.transaction + 1,
                publishing=tuple((self._staged(binding), self._final(binding)) for binding in sinks),
            )
            self._manifest.commit(shard)
            self._shard = shard
            self._publish(shard)

    def close(self) -> None:
        """Remove uncommitted files."""
        for binding, sink in self._sinks.items():
            with suppress(OSError):
                sink.close()
            (self._staging / self._staged(binding)).unlink(missing_ok=True)

    def _sync(self, path: Path) -> None:
        try:
            sync(path)
        except FileNotFoundError:
            # A later session has removed the file.
            self._manifest.check(self._shard)
            raise

    def _name(self) -> str:
        # Names sort in the order of a key's changes: by session, then by transaction.
        return f"{self._epoch:012d}-{self._shard.transaction + 1:09d}-{self._range}-{self._whose}"

    def _staged(self, binding: int) -> str:
        return f"{self._name()}-{binding}{_STAGED}"

    def _final(self, binding: int) -> str:
        resource = self._bindings[binding].resource
        return f"{resource['path']}/{self._name()}.{resource['format']}"

    def _publish(self, shard: Shard) -> None:
        for staged, path in shard.publishing:
            final = self._root / path
            make_folders(final.parent)
            try:
                os.replace(self._staging / staged, final)
            except FileNotFoundError:
                continue  # a later session has renamed the file
            sync(final.parent)

    def _clean_up(self, version: Version) -> None:
        """Rename committed files of earlier sessions, and remove their uncommitted files."""
        overlapping = [shard for shard in version.shards if shard.overlaps(self._shard.begin, self._shard.end)]
        for shard in overlapping:
            self._publish(shard)
        for path in self._staging.iterdir():
            epoch, _, begin, end, *_ = path.name.split("-")
            is_older = int(epoch) < self._epoch
            if is_older and Shard(int(begin, 16), int(end, 16), "").overlaps(self._shard.begin, self._shard.end):
                path.unlink(missing_ok=True)


_ENDPOINT: JSON = {
    "title": "Files",
    "type": "object",
    "required": ["path"],
    "properties": {"path": {"type": "string", "minLength": 1, "description": "Folder of the files."}},
    "additionalProperties": False,
}
_RESOURCE: JSON = {
    "title": "Files of a collection",
    "type": "object",
    "required": ["path", "format"],
    "properties": {
        "path": {
            "type": "string",
            "pattern": r"^[^./\\\u0000][^/\\\u0000]*(/[^./\\\u0000][^/\\\u0000]*)*$",
            "description": "Folder of the collection's files, below the endpoint's folder.",
        },
        "format": {"enum": sorted(FORMATS), "description": "Format of the files."},
        "delta_updates": {"const": True, "description": "Files are only added; other updates are not supported."},
    },
    "additionalProperties": False,
}


class FilesConnector:
    """Adds a file for each binding and each transaction of a shard."""

    name = "materialize-files"

    def spec(self) -> ConnectorSpec:
        """Return the configuration schemas."""
        return ConnectorSpec(_ENDPOINT, _RESOURCE, "docs/materialize-connectors.md#files", is_local=True)

    def validate(self, request: Validation) -> list[ValidatedBinding]:
        """Return the constraints of the formats on fields."""
        bindings = []
        for binding in request.bindings:
            lines = binding.resource["format"] == "jsonl"
            constraints = {
                name: _of_line(field) if lines else _of_column(field)
                for name, field in binding.collection.fields.items()
            }
            bindings.append(ValidatedBinding((binding.resource["path"],), constraints, delta_updates=True))
        return bindings

    def apply(self, request: Application) -> str:
        """Create the folders."""
        root = Path(request.materialization.config["path"])
        paths = [root / binding.resource["path"] for binding in request.materialization.bindings]
        missing = [path for path in (folder_of(root, request.materialization.name), *paths) if not path.is_dir()]
        with reporting(f"cannot create folders in {root}"):
            for path in missing:
                if not request.dry_run:
                    make_folders(path)
        nearest = next(path for path in (root, *root.parents) if path.exists())
        if not nearest.is_dir():
            raise EndpointError(f"{nearest} is not a folder")
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise DeniedError(
                f"the user of the connector cannot write into {nearest}",
                hint="grant the user of the connector the right to write there",
            )
        return "\n".join(f"make the folder {path}" for path in dict.fromkeys(missing))

    def open(self, opening: Opening) -> FilesSession:
        """Open a session."""
        return FilesSession(opening, Path(opening.materialization.config["path"]))


def _of_column(field: Field) -> Constraint:
    if field.name == DELETED:
        return Constraint(ConstraintType.FIELD_FORBIDDEN, f"'{DELETED}' is the column that marks deleted rows")
    if field.is_key:
        return Constraint(ConstraintType.LOCATION_REQUIRED, "it is part of the key")
    if not field.pointer:
        return Constraint(ConstraintType.FIELD_OPTIONAL, "a whole document is stored in a column of text")
    if kind_of(field) == "json":
        return Constraint(ConstraintType.FIELD_OPTIONAL, "its values are stored as JSON in a column of text")
    return Constraint(ConstraintType.LOCATION_RECOMMENDED, "its values fit a column of one type")


def _of_line(field: Field) -> Constraint:
    if field.is_key:
        return Constraint(ConstraintType.LOCATION_REQUIRED, "it is part of the key")
    if not field.pointer:
        return Constraint(ConstraintType.FIELD_REQUIRED, "each line is a whole document")
    return Constraint(ConstraintType.FIELD_FORBIDDEN, "each line is a whole document, which contains the field")
