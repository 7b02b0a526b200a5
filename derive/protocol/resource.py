"""Resources: the URLs of a catalog's files, and their form in messages.

The URL of a resource is an absolute path, or an http(s) address.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit


def resolve(base: str, reference: str) -> str:
    """Return the URL of a reference that a resource with the URL `base` contains."""
    if is_remote(reference) or is_remote(base):
        try:
            return urljoin(base, reference)
        except ValueError:  # no valid URL, which loading reports
            return reference
    path = unquote(reference[7:]) if reference.startswith("file://") else reference
    return os.path.normpath(Path(base).parent / path)


def show(url: str) -> str:
    """Return a URL as messages show it: a path below the working directory is relative."""
    if is_remote(url):
        return url
    relative = os.path.relpath(url)
    return url if relative.startswith("..") else relative


def is_remote(url: str) -> bool:
    """Return true if a URL is an http(s) address."""
    try:
        return urlsplit(url).scheme in ("http", "https")
    except ValueError:
        return url.startswith(("http:", "https:"))


def reason_of(exc: OSError) -> str:
    """Return a short reason for an error of loading a resource."""
    from urllib.error import URLError

    if isinstance(exc, URLError):
        return reason_of(exc.reason) if isinstance(exc.reason, OSError) else str(exc.reason)
    return exc.strerror or str(exc)


def too_large(limit: int) -> OSError:
    """Return the error of a resource that exceeds the size limit."""
    return OSError(f"it has more than {limit >> 20} MiB, the limit of a file that a catalog names")
