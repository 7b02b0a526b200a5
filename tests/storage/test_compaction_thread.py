"""A run that goes on tidies beside its transactions, and what goes wrong with that is told."""

from __future__ import annotations

import sys
import threading

import pytest
from patience import PATIENCE_SECONDS

from derive.errors import StorageError
from derive.storage.compaction import CompactionThread


def test_compaction_thread_runs_repeatedly() -> None:
    times = threading.Semaphore(0)
    interval = sys.getswitchinterval()
    with CompactionThread(times.release, every=0.001) as tidying:
        for _ in range(3):
            assert times.acquire(timeout=PATIENCE_SECONDS)
        tidying.check()

    assert sys.getswitchinterval() == interval


def test_compaction_failure_is_raised_once_and_does_not_end_the_thread() -> None:
    tidied, failed = threading.Semaphore(0), threading.Event()

    def compact() -> None:
        if not failed.is_set():
            failed.set()
            raise StorageError("the disk is broken")
        tidied.release()

    with CompactionThread(compact, every=0.001) as tidying:
        assert tidied.acquire(timeout=PATIENCE_SECONDS)
        with pytest.raises(StorageError, match="the disk is broken"):
            tidying.check()
        tidying.check()
