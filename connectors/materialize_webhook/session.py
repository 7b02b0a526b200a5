"""A stream of transactions into requests.

Documents wait on disk until the commit, which posts them in order. If one request cannot be posted, the commit fails,
and the runtime comes with the same documents again: all are posted at least once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from tempfile import SpooledTemporaryFile
from threading import Event

from connectors.kit import DriverCheckpoint, Opening, StoredRows, Value
from connectors.materialize_webhook.config import WebhookConfig
from connectors.materialize_webhook.sender import CancelledError, Sender
from derive.errors import EndpointError, EndpointGoneError

_MOST_IN_MEMORY = 16 << 20


@dataclass(frozen=True, slots=True)
class Batch:
    """Documents of one request.

    Attributes:
        binding: index of their binding.
        is_deletion: whether their keys are deleted.
        begin: where they begin among all that wait, in bytes.
        end: where they end.
    """

    binding: int
    is_deletion: bool
    begin: int
    end: int


class WebhookSession:
    """Transactions of one range of keys.

    Attributes:
        checkpoint: empty: the runtime knows by itself what was posted.
    """

    checkpoint = b""

    def __init__(self, opening: Opening, config: WebhookConfig) -> None:
        self._name = opening.materialization.name
        self._bindings = opening.materialization.bindings
        self._range = f"{opening.key_begin:08x}-{opening.key_end:08x}"
        self._config = config
        self._cancelled = Event()
        self._sender = Sender(config, self._cancelled.wait)
        self._checkpoint = b""
        self._waiting = SpooledTemporaryFile(_MOST_IN_MEMORY)  # noqa: SIM115 (closed with the session)
        self._batches: list[Batch] = []

    def load(self, binding: int, keys: Sequence[tuple[Value, ...]]) -> None:
        """Never called: all bindings have delta updates."""
        raise EndpointError("webhooks have delta updates only")

    def loaded(self) -> Iterator[tuple[int, Sequence[bytes]]]:
        """Nothing."""
        return iter(())

    def prepare(self, flow_checkpoint: bytes) -> DriverCheckpoint | None:
        """Take the checkpoint, by which requests are told from those of other transactions."""
        self._checkpoint = flow_checkpoint
        return None

    def store(self, binding: int, rows: StoredRows) -> None:
        """Have documents wait."""
        for is_deletion in (False, True):
            flags = [deleted is is_deletion for deleted in rows.deleted]
            for body in self._bodies(list(compress(rows.documents, flags))):
                begin = self._batches[-1].end if self._batches else 0
                self._waiting.write(body)
                self._batches.append(Batch(binding, is_deletion, begin, begin + len(body)))

    def commit(self) -> None:
        """Post what waits."""
        self._waiting.seek(0)
        for index, batch in enumerate(self._batches):
            self._post(index, batch, self._waiting.read(batch.end - batch.begin))
        self._batches = []
        self._waiting.seek(0)
        self._waiting.truncate()

    def cancel(self) -> None:
        """Repeat no request: whoever comes next posts newer documents, and ours must not come behind these."""
        self._cancelled.set()
        self._sender.interrupt()

    def close(self) -> None:
        """Forget what waits."""
        self._sender.close()
        self._waiting.close()

    def _bodies(self, documents: Sequence[bytes]) -> Iterator[bytes]:
        """JSON arrays of documents, none of which is larger than it may be, unless by a single document."""
        batch: list[bytes] = []
        size = 0
        for document in documents:
            is_full = size + len(document) > self._config.batch_bytes or len(batch) == self._config.batch_documents
            if batch and is_full:
                yield b"[" + b",".join(batch) + b"]"
                batch, size = [], 0
            batch.append(document)
            size += len(document)
        if batch:
            yield b"[" + b",".join(batch) + b"]"

    def _post(self, index: int, batch: Batch, body: bytes) -> None:
        binding = self._bindings[batch.binding]
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": self._identity(index, body),
            "Flow-Materialization": _as_header(self._name),
            "Flow-Collection": _as_header(binding.collection.name),
            "Flow-Operation": "delete" if batch.is_deletion else "store",
        }
        try:
            self._sender.post(binding.resource.get("path", ""), body, headers)
        except CancelledError:
            raise EndpointGoneError("the stream was ended while documents were posted") from None

    def _identity(self, index: int, body: bytes) -> str:
        """The same for the same request of the same transaction, whoever makes it and whenever."""
        identity = hashlib.sha256()
        for part in (self._name.encode(), self._range.encode(), self._checkpoint, b"%d" % index, body):
            identity.update(b"%d:" % len(part) + part)
        return identity.hexdigest()


def _as_header(name: str) -> str:
    """A name as headers may have it: UTF-8, of which each byte is a character."""
    return name.encode().decode("latin-1")
