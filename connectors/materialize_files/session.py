"""A stream of transactions into files.

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

from connectors.kit import DriverCheckpoint, Opening, StoredRows, Value
from connectors.materialize_files.formats import FORMATS, Sink
from connectors.materialize_files.manifest import Manifest, Shard, Version, reporting
from derive.durable import make_folders, sync
from derive.errors import EndpointError

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
