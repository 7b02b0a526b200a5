"""A run that goes on waits for what is transient when it begins, as it does later."""

from __future__ import annotations

import time

import pytest

from derive.cli.run import _attempt
from derive.errors import DiskFullError, UsageError


def test_a_run_begins_once_the_disk_has_space(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)

    def attempt() -> str:
        if len(pauses) < 3:
            raise DiskFullError("no space left on the device while writing x", hint="free some space")
        return "begun"

    assert _attempt(attempt, is_patient=True) == "begun"
    assert len(pauses) == 3
    assert capsys.readouterr().err == "error: no space left on the device while writing x\n  = free some space\n"


def test_a_run_does_not_wait_for_what_stays() -> None:
    def attempt() -> str:
        raise UsageError("there is no such task")

    with pytest.raises(UsageError):
        _attempt(attempt, is_patient=True)


def test_a_run_until_idle_does_not_wait() -> None:
    def attempt() -> str:
        raise DiskFullError("no space left on the device while writing x")

    with pytest.raises(DiskFullError):
        _attempt(attempt, is_patient=False)
