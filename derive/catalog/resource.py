"""Resources: the files and http(s) URLs a catalog refers to, each loaded once."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urljoin, urlsplit
from urllib.request import urlopen

from derive.catalog.yaml import YamlFile, parse_yaml
from derive.protocol.specs import JSON

_SECONDS = 10.0


class Resources:
    """Loads what a catalog is made of.

    A resource is known by its URL: an absolute path, or an http(s) address.
    """

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._parsed: dict[str, YamlFile] = {}

    @staticmethod
    def resolve(base: str, reference: str) -> str:
        """The URL of a reference written in the resource `base`."""
        if urlsplit(reference).scheme in ("http", "https") or urlsplit(base).scheme in ("http", "https"):
            return urljoin(base, reference)
        return os.path.normpath(Path(base).parent / reference)

    @staticmethod
    def show(url: str) -> str:
        """How a URL is written in messages: a path below the working directory is relative to it."""
        if urlsplit(url).scheme in ("http", "https"):
            return url
        relative = os.path.relpath(url)
        return url if relative.startswith("..") else relative

    def text(self, url: str) -> str:
        """The text of a resource.

        Raises:
            OSError: it cannot be loaded.
        """
        if url not in self._texts:
            if urlsplit(url).scheme in ("http", "https"):
                with urlopen(url, timeout=_SECONDS) as response:  # http(s) only: the scheme is checked above
                    content: bytes = response.read()
            else:
                content = Path(url).read_bytes()
            try:
                self._texts[url] = content.decode()
            except UnicodeDecodeError as exc:
                raise OSError(f"it is not UTF-8 text (byte {exc.start})") from exc
        return self._texts[url]

    def document(self, url: str) -> YamlFile:
        """A YAML or JSON resource, parsed.

        Raises:
            OSError: it cannot be loaded.
            CatalogError: it cannot be parsed.
        """
        if url not in self._parsed:
            self._parsed[url] = parse_yaml(self.text(url), self.show(url))
        return self._parsed[url]

    def value(self, url: str) -> JSON:
        """What a YAML or JSON resource holds."""
        return self.document(url).value


def why(exc: OSError) -> str:
    """An error of loading, in a few words."""
    if isinstance(exc, URLError):
        return str(exc.reason)
    return exc.strerror or str(exc)
