"""What the process says that Spark forks workers from: nothing about Spark's own end."""

from __future__ import annotations

from socket import socket

import pytest

from derive.spark.daemon import unheard


def test_answer_without_a_reader_is_no_error() -> None:
    errors: list[OSError] = [OSError(5, "Input/output error"), BrokenPipeError(32, "Broken pipe")]

    def work(sock: socket, authenticated: bool) -> int:
        if errors:
            raise errors.pop()
        return 0

    with socket() as sock:
        assert unheard(work)(sock, True) == 1
        with pytest.raises(OSError, match="Input/output error"):
            unheard(work)(sock, True)
        assert unheard(work)(sock, True) == 0
