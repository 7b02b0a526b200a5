"""A compute instance in this process, over the data folder's Storage, and the lock on its folder."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from derive.algebra.relation import GlobalId
from derive.backoff import Backoff
from derive.compute.instance import Input, Instance
from derive.compute.protocol.messages import Dataflow, Welcome
from derive.compute.replica.reconciler import Reconciler
from derive.compute.replica.session import Identity
from derive.compute.replica.writeback import Writeback
from derive.contents.inputs import relation_input
from derive.durable import make_folders
from derive.errors import BusyError, FencedError
from derive.storage.folder_id import folder_id
from derive.storage.metadata.process import is_dead, show_process, this_process
from derive.storage.store import Store

FILE = "lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder for this process, until the block ends.

    Raises:
        BusyError: another process holds the lock.
    """
    make_folders(folder)
    descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if not _lock(descriptor):
            holder = holder_of(folder)
            who = f"another instance, {show_process(holder)}," if holder else "another instance"
            raise BusyError(f"{who} uses the folder {folder}", hint="give each process a --folder of its own")
        name = this_process().encode()
        os.pwrite(descriptor, name, 0)
        os.ftruncate(descriptor, len(name))
        yield
    finally:
        os.close(descriptor)


def holder_of(folder: Path) -> str | None:
    """Return the name of the process that holds a folder (see `derive.storage.metadata.process`); None if unknown."""
    try:
        descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if _lock(descriptor):
            return None
        name = os.pread(descriptor, 4096, 0).decode()
    finally:
        os.close(descriptor)
    return name if name and not is_dead(name) else None


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_SECONDS = 0.5
"""Seconds without a commit after which the worker looks for work again."""

_BACKOFF = Backoff(0.1, 10.0)
"""Pauses, in seconds, before failed work is retried."""

_MOST_THREADS = 2000
"""Maximum number of queries and subscriptions that run at once.

A slow reader of a large result keeps its thread waiting, so there are more threads than slow readers. Threads are
started only if there is work for them.
"""


class Worker:
    """An instance, and the thread that works for it.

    Args:
        store: Storage of the data folder.
        folder: folder of the instance's data; None for data that are deleted when the instance is closed.
        name: name of the process, shown to users.
        report: function called with the error each time work fails, and with None when work succeeds again.
        notify: function called with the reconciled dataflows when a session of a controller begins.

    Attributes:
        reconciler: receiver of commands.
    """

    def __init__(
        self,
        store: Store,
        folder: Path | None,
        name: str,
        report: Callable[[Exception | None], None],
        notify: Callable[[Welcome], None] = lambda welcome: None,
    ) -> None:
        self._store, self._report = store, report
        self._pool = ThreadPoolExecutor(_MOST_THREADS, "flowctl-compute")
        self._writeback = Writeback(store)
        self.reconciler = Reconciler(
            Instance(folder, is_limited=True),
            self._open,
            self._writeback.write,
            identity=Identity(f"{name}-{os.getpid()}", folder_id(store.root)),
            run=self._pool.submit,
            wake=store.changes.wake,
            notify=notify,
        )
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="flowctl-compute", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop work, and release all resources."""
        self._closed.set()
        self.reconciler.stop()
        self._store.changes.wake()
        self._thread.join()
        self._pool.shutdown(cancel_futures=True)
        self._writeback.close()
        self.reconciler.close()

    def _open(self, dataflow: Dataflow, as_of: int) -> dict[GlobalId, Input]:
        inputs: dict[GlobalId, Input] = {}
        try:
            for source in dataflow.imports:
                name = self._store.tables.name_of(source.id) or source.name
                known = self._store.collection(name)
                if known is None or known.upper <= as_of:
                    raise FencedError(f"'{name}' was reset: its contents at {as_of} are no longer known")
                inputs[source.id] = relation_input(self._store, replace(source.source, name=source.name), as_of)
        except BaseException:
            for opened in inputs.values():
                opened.close()
            raise
        return inputs

    def _work(self) -> None:
        failures = 0
        while not self._closed.is_set():
            mark = self._store.changes.mark()
            try:
                has_more = self.reconciler.work()
            except Exception as error:  # retry: the disk may be full, or the metadata locked
                if self._closed.is_set():
                    return
                failures += 1
                self._report(error)
                self._closed.wait(_BACKOFF.pause(failures))
                continue
            if failures:
                failures = 0
                self._report(None)
            if not has_more:
                self._store.changes.wait(mark, _SECONDS)
