"""Remote resources at http(s) addresses; a module of its own, because its imports are slow and rarely needed."""

from __future__ import annotations

import time
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import urlopen

from derive.protocol.resource import too_large

_BLOCK = 1 << 16


def fetch(url: str, seconds: float, most_bytes: int) -> bytes:
    """Return the content of an http(s) address.

    Args:
        url: the address.
        seconds: time limit for the whole transfer, even from a slow server.
        most_bytes: limit for the size of the content.

    Raises:
        OSError: the content cannot be loaded, or exceeds the limit.
    """
    try:
        return _read(url, seconds, most_bytes)
    except HTTPException as exc:
        raise OSError(f"invalid answer: {type(exc).__name__}") from exc
    except HTTPError as exc:
        exc.close()
        raise OSError(f"HTTP {exc.code} {exc.reason}") from exc
    except ValueError as exc:
        raise OSError(str(exc)) from exc


def _read(url: str, seconds: float, most_bytes: int) -> bytes:
    end = time.monotonic() + seconds
    blocks: list[bytes] = []
    size = 0
    with urlopen(url, timeout=seconds) as response:  # http(s) only: the caller has checked the scheme
        while block := response.read1(_BLOCK):
            blocks.append(block)
            size += len(block)
            if size > most_bytes:
                raise too_large(most_bytes)
            if time.monotonic() > end:
                raise TimeoutError("timed out")
    content = b"".join(blocks)
    expected = response.headers.get("Content-Length")
    if expected is not None and expected.isdigit() and len(content) < int(expected):
        raise OSError(f"the answer ends after {len(content)} of {expected} bytes")
    return content
