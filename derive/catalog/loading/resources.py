"""Resources: the files and http(s) URLs of a catalog, each loaded once, and the project's folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from derive.catalog.language.yaml import YamlFile, parse_yaml
from derive.errors import CatalogError
from derive.protocol.resource import is_remote, show, too_large
from derive.protocol.specs import JSON

_ROOTS = ("flow.yaml", "flow.yml", "flow.json")


def project_root(source: Path) -> Path:
    """Return the project's folder of a catalog.

    The folder is the outermost parent in an unbroken chain of folders with root files.
    """
    folder = source.absolute().parent
    while folder.parent != folder and any(os.path.isfile(folder.parent / name) for name in _ROOTS):
        folder = folder.parent
    return Path(os.path.normpath(folder))


_SECONDS = 10.0

MOST_BYTES = 32 << 20
"""Size limit for a file of a catalog, bytes."""


class Resources:
    """Loads the resources of a catalog.

    A resource is identified by its URL: an absolute path, or an http(s) address.

    Args:
        seconds: time limit for an http(s) transfer.
        given: texts of resources by URL, which are used instead of loading them.

    Attributes:
        seconds: time limit for an http(s) transfer.
        asked: URLs of loaded resources and of failed ones.
        hashes: hash of each file's loaded content, by path.
    """

    def __init__(self, seconds: float = _SECONDS, given: Mapping[str, str] | None = None) -> None:
        self.seconds = seconds
        self._texts: dict[str, str | OSError] = {**(given or {})}
        self.asked: set[str] = set()
        self.hashes: dict[str, str] = {}
        self._parsed: dict[str, YamlFile | CatalogError] = {}

    def text(self, url: str) -> str:
        """Return the text of a resource.

        Raises:
            OSError: the resource cannot be loaded, now or at the first request.
        """
        if url not in self._texts:
            try:
                self._texts[url] = self._load(url)
            except OSError as exc:
                self._texts[url] = exc
        content = self._texts[url]
        if isinstance(content, OSError):
            raise content
        return content

    def document(self, url: str) -> YamlFile:
        """Return a parsed YAML or JSON resource.

        Raises:
            OSError: the resource cannot be loaded.
            CatalogError: the resource cannot be parsed.
        """
        if url not in self._parsed:
            try:
                self._parsed[url] = parse_yaml(self.text(url), show(url))
            except CatalogError as exc:
                self._parsed[url] = exc
        document = self._parsed[url]
        if isinstance(document, CatalogError):
            raise document
        return document

    def value(self, url: str) -> JSON:
        """Return the content of a YAML or JSON resource as JSON."""
        return self.document(url).value

    def _load(self, url: str) -> str:
        try:
            return self.content(url).decode("utf-8-sig")
        except UnicodeDecodeError as exc:
            raise OSError(f"it is not UTF-8 text (byte {exc.start})") from exc

    def content(self, url: str) -> bytes:
        """Return the bytes of a resource, without caching them.

        Raises:
            OSError: the resource cannot be loaded.
        """
        self.asked.add(url)
        if is_remote(url):
            from derive.catalog.loading.remote import fetch

            return fetch(url, self.seconds, MOST_BYTES)
        if url.startswith("file:"):  # file URLs of a local catalog are already converted to paths
            raise OSError("a catalog at an http(s) address may name files at such addresses only")
        try:
            with Path(url).open("rb") as file:
                content = file.read(MOST_BYTES + 1)
        except ValueError as exc:
            raise OSError(str(exc)) from exc
        if len(content) > MOST_BYTES:
            raise too_large(MOST_BYTES)
        self.hashes[url] = hashlib.sha256(content).hexdigest()
        return content
