"""Modules: what a TypeScript module imports from beside it, so that it is there wherever the module runs.

Only relative imports are followed; libraries are Deno's to find. What is missing is left for `deno check` to say, which
knows where it is asked for.
"""

from __future__ import annotations

import posixpath
import re

from derive.catalog.resource import Resources
from derive.position import Script
from derive.protocol.specs import ImportedFile

_IMPORT = re.compile(r"""(?:\bfrom|\bimport)\s*\(?\s*(["'])(\.\.?/[^"'\n\\]+)\1""")
_CODE = (".ts", ".mts", ".tsx", ".js", ".mjs", ".jsx")


def imported_files(resources: Resources, module: Script, url: str) -> tuple[ImportedFile, ...]:
    """The files that a module imports by relative paths, themselves or through one another, sorted by path.

    Args:
        resources: loads them.
        module: the module.
        url: of the file it is written in.
    """
    found: dict[str, ImportedFile] = {}
    pending = [(".", module.text)]
    while pending:
        place, text = pending.pop()
        for each in _IMPORT.finditer(text):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(place), each[2]))
            target = Resources.resolve(url, path)
            if path in found:
                continue
            if target == url and module.source == module.text:  # the module itself, by its own name
                found[path] = ImportedFile(path, None)
                continue
            try:
                content = resources.content(target)
            except OSError:
                continue
            found[path] = ImportedFile(path, content)
            if path.endswith(_CODE):
                pending.append((path, content.decode("utf-8", "replace")))
    return tuple(found[path] for path in sorted(found))
