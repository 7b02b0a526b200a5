"""Resources: the URLs of the files that a catalog is made of, and how they are told to a person.

The URL of a resource is an absolute path, or an http(s) address.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit


def resolve(base: str, reference: str) -> str:
    """The URL of a reference written in the resource `base`."""
    if is_remote(reference) or is_remote(base):
        try:
            return urljoin(base, reference)
        except ValueError:  # no URL at all, which loading will say
            return reference
    path = unquote(reference[7:]) if reference.startswith("file://") else reference
    return os.path.normpath(Path(base).parent / path)


def show(url: str) -> str:
    """How a URL is written in messages: a path below the working directory is relative to it."""
    if is_remote(url):
        return url
    relative = os.path.relpath(url)
    return url if relative.startswith("..") else relative


def is_remote(url: str) -> bool:
    """Whether a URL is an http(s) address."""
    try:
        return urlsplit(url).scheme in ("http", "https")
    except ValueError:
        return url.startswith(("http:", "https:"))


def reason_of(exc: OSError) -> str:
    """Why a resource cannot be loaded, in a few words."""
    from urllib.error import URLError

    if isinstance(exc, URLError):
        return reason_of(exc.reason) if isinstance(exc.reason, OSError) else str(exc.reason)
    return exc.strerror or str(exc)


def too_large(limit: int) -> OSError:
    """Return the error of a resource of more bytes than the limit."""
    return OSError(f"it has more than {limit >> 20} MiB, the limit of a file that a catalog names")
