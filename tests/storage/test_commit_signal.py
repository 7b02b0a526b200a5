"""The commit signal of a data folder wakes all listeners, also those that begin to listen in time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from patience import PATIENCE_SECONDS

from derive.storage.metadata.commit_signal import WRITTEN, FileListener, FileSignal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who touches files")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "metadata.db"
    file.touch()
    return file


def listens(listener: FileListener, seconds: float) -> float:
    begun = time.monotonic()
    listener.listen(seconds)
    return time.monotonic() - begun


def test_commit_signal_reaches_current_listeners_only(file: Path) -> None:
    signal = FileSignal(file)
    with signal.listener() as one, signal.listener() as other:
        assert one is not None
        assert other is not None
        signal.send()
        signal.send()
        one.forget()
        assert listens(one, 0.05) >= 0.05
        assert listens(other, PATIENCE_SECONDS) < PATIENCE_SECONDS
        threading.Timer(0.05, FileSignal(file).send).start()
        assert listens(one, PATIENCE_SECONDS) < PATIENCE_SECONDS
    signal.close()


def test_commit_signals_between_listeners_are_received(file: Path) -> None:
    signal = FileSignal(file)
    with signal.listener() as first:
        assert first is not None
    signal.send()
    with signal.listener() as again:
        assert again is first
        assert listens(again, PATIENCE_SECONDS) < PATIENCE_SECONDS
    signal.close()


def test_writes_alone_send_no_signal(file: Path) -> None:
    signal = FileSignal(file)
    with signal.listener() as listener, file.open("ab") as stream:
        assert listener is not None
        stream.write(b"content")
        stream.flush()
        assert listens(listener, 0.05) >= 0.05
    signal.close()


def test_commit_signal_closes_its_descriptors(file: Path) -> None:
    before = os.listdir("/proc/self/fd")
    signal = FileSignal(file)
    with signal.listener(), signal.listener():
        assert len(os.listdir("/proc/self/fd")) > len(before)
    signal.close()
    assert os.listdir("/proc/self/fd") == before


def test_commit_signal_without_a_folder_has_no_listener(tmp_path: Path) -> None:
    signal = FileSignal(tmp_path / "nowhere")
    signal.send()
    with signal.listener() as listener:
        assert listener is None
    signal.close()


def test_commit_signal_folder_reports_writes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    listener = FileListener([tmp_path], WRITTEN)
    log.write_text("one")
    assert listens(listener, PATIENCE_SECONDS) < PATIENCE_SECONDS
    listener.forget()
    assert listens(listener, 0.05) >= 0.05
    with log.open("a") as stream:
        stream.write("two")
    assert listens(listener, PATIENCE_SECONDS) < PATIENCE_SECONDS
    listener.forget()
    log.rename(tmp_path / "log.1")
    assert listens(listener, PATIENCE_SECONDS) < PATIENCE_SECONDS
    listener.close()


def test_commit_signal_listener_stays_open_while_the_interpreter_ends(file: Path) -> None:
    """Functions for the end of the interpreter run in reverse order, and threads that listen have not ended by then."""
    script = f"""
import atexit
from pathlib import Path
listeners = []
atexit.register(lambda: listeners[0].forget())
from derive.storage.metadata.commit_signal import FileListener
listeners.append(FileListener([Path({str(file)!r})]))
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
