"""Bundling: a schema that refers to other files becomes one that refers only to itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urljoin

from derive.document.pointer import JSON, escape

Load = Callable[[str], JSON]
"""Loads a schema document by its absolute URL or path."""

_VALUES = ("enum", "const", "default", "examples")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


def bundle(schema: JSON, base: str, load: Load) -> JSON:
    """A self-contained copy of a schema.

    Every document it refers to is embedded under `$defs`, and every `$ref` is rewritten to point there.

    Args:
        schema: the schema, or a reference to one (`{"$ref": …}`).
        base: where it is written; relative references start here.
        load: loads what it refers to.
    """
    return _Bundle(load).run(schema, base)


class _Bundle:
    def __init__(self, load: Load) -> None:
        self._load = load
        self._names: dict[str, str] = {}
        self._embedded: dict[str, JSON] = {}

    def run(self, schema: JSON, base: str) -> JSON:
        # A document that is nothing but a reference to a whole other one is that one.
        if isinstance(schema, dict) and set(schema) == {"$ref"} and "#" not in schema["$ref"]:
            url = urljoin(base, schema["$ref"])
            return self.run(self._load(url), url)
        root = self._rewrite(schema, base, "")
        if self._embedded:
            root["$defs"] = {**root.get("$defs", {}), **self._embedded}
        return root

    def _rewrite(self, value: JSON, base: str, prefix: str) -> JSON:
        if isinstance(value, list):
            return [self._rewrite(each, base, prefix) for each in value]
        if not isinstance(value, dict):
            return value
        copied: dict[str, Any] = {}
        for name, each in value.items():
            if name == "$ref" and isinstance(each, str):
                copied[name] = self._reference(each, base, prefix)
            elif name in _VALUES:
                copied[name] = each
            elif name in _NAMED and isinstance(each, dict):  # its property names are not keywords
                copied[name] = {key: self._rewrite(child, base, prefix) for key, child in each.items()}
            elif name not in ("$id", "$schema") or not isinstance(each, str):
                copied[name] = self._rewrite(each, base, prefix)
        return copied

    def _reference(self, reference: str, base: str, prefix: str) -> str:
        target, _, fragment = reference.partition("#")
        if not target:
            return f"#{prefix}{fragment}" if not fragment or fragment.startswith("/") else f"#{fragment}"
        url = urljoin(base, target)
        if url not in self._names:
            name = self._names[url] = self._free_name(url)
            self._embedded[name] = True  # until it is loaded, so that cycles end
            self._embedded[name] = self._rewrite(self._load(url), url, f"/$defs/{escape(name)}")
        if fragment and not fragment.startswith("/"):
            return f"#{fragment}"
        return f"#/$defs/{escape(self._names[url])}{fragment}"

    def _free_name(self, url: str) -> str:
        name = url.rsplit("/", 1)[-1]
        taken = set(self._names.values())
        number = 2
        while name in taken:
            name = f"{url.rsplit('/', 1)[-1]}-{number}"
            number += 1
        return name
