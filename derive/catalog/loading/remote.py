"""Remote resources: what lies at an http(s) address. What loads them takes long to load, and few catalogs need it."""

from __future__ import annotations

import time
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import urlopen

from derive.protocol.resource import too_large

_BLOCK = 1 << 16


def fetch(url: str, seconds: float, most_bytes: int) -> bytes:
    """The content of an http(s) address.

    Args:
        url: the address.
        seconds: how long it may take in all, also from a server that sends byte by byte.
        most_bytes: how many bytes it may send.

    Raises:
        OSError: it cannot be loaded, or sends more.
    """
    try:
        return _read(url, seconds, most_bytes)
    except HTTPException as exc:
        raise OSError(f"no sensible answer: {type(exc).__name__}") from exc
    except HTTPError as exc:
        exc.close()
        raise OSError(f"HTTP {exc.code} {exc.reason}") from exc
    except ValueError as exc:
        raise OSError(str(exc)) from exc


def _read(url: str, seconds: float, most_bytes: int) -> bytes:
    end = time.monotonic() + seconds
    blocks: list[bytes] = []
    size = 0
    with urlopen(url, timeout=seconds) as response:  # http(s) only: the scheme has been looked at
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
