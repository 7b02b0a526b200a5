"""Modules: what a TypeScript module imports from beside it, so that it is there wherever the module runs.

Only relative imports are followed; libraries are Deno's to find, by names that the project's `deno.json` gives.
What is missing is left for `deno check` to say, which knows where it is asked for.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from derive.catalog.resource import Resources
from derive.document.jsonc import parse_jsonc
from derive.position import Script
from derive.protocol.specs import ImportedFile

_IMPORT = re.compile(r"""(?:\bfrom|\bimport)\s*\(?\s*(["'])(\.\.?/[^"'\n\\]+)\1""")
_SETTINGS = ("deno.json", "deno.jsonc")
_LIBRARY = ("npm:", "jsr:", "https:", "http:")
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


def named_libraries(resources: Resources, url: str) -> tuple[tuple[str, str], ...]:
    """The libraries that have names in the `imports` of the nearest `deno.json`, with what each name stands for.

    Args:
        resources: loads it.
        url: of the file that the module is written in; only one of this machine is near a `deno.json`.
    """
    for folder in Path(url).parents if Path(url).is_absolute() else ():
        for name in _SETTINGS:
            try:
                value = parse_jsonc(resources.content(str(folder / name)).decode("utf-8", "replace"))
            except OSError:
                continue
            imports = value.get("imports") if isinstance(value, dict) else None
            named = imports.items() if isinstance(imports, dict) else ()
            return tuple(sorted((key, to) for key, to in named if isinstance(to, str) and to.startswith(_LIBRARY)))
    return ()
