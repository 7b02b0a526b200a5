"""Cancelling what a client runs, however slow the machine is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def cancelling(cancel: Callable[[], object], after: float = 0.2) -> Iterator[None]:
    """Cancel again and again until the block ends: what comes before a statement has begun cancels nothing.

    Args:
        cancel: of the session that is at work within the block.
        after: how many seconds go by before the first, and between one and the next.
    """
    is_over = threading.Event()

    def work() -> None:
        while not is_over.wait(after):
            cancel()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
