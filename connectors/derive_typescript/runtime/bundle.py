"""The harness as one module without exports: a derivation's module could import any loaded module by its URL.

Each file of the harness becomes a function that returns the file's exports; imports from other files read these
results.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_IMPORT = re.compile(r"^import (?:\{([^}]*)\} from )?'\./(\w+)\.ts';\n", re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function\*?|const|let|class) )(\w+)", re.MULTILINE)
_EXPORTED_TYPE = re.compile(r"^export (?=interface |type )", re.MULTILINE)
_LISTED = re.compile(r"^export \{([^}]*)\};\n", re.MULTILINE)


def bundle(files: Mapping[str, str]) -> str:
    r"""Join files into one module.

    >>> print(bundle({"a": "export const one = 1;\n", "main": "import { one as first } from './a.ts';\nfirst;\n"}))
    const from_a = (() => {
    const one = 1;
    return { one };
    })();
    const { one: first } = from_a;
    first;
    <BLANKLINE>

    Args:
        files: texts by name, each after the files that it imports; the last one exports nothing.

    Raises:
        ValueError: an import or export has an unsupported form.
    """
    parts = []
    for place, (name, text) in enumerate(files.items(), start=1):
        body, exported = _unwrapped(text)
        if place < len(files):
            body = f"const from_{name} = (() => {{\n{body}return {{ {', '.join(exported)} }};\n}})();\n"
        parts.append(body)
    return "".join(parts)


def _unwrapped(text: str) -> tuple[str, list[str]]:
    """Return the text of a file without imports and exports, and the names that it exports."""
    exported = [match[2] for match in _EXPORT.finditer(text)]
    for listed in _LISTED.finditer(text):
        exported += [name.strip() for name in listed[1].split(",") if name.strip()]
    body = _LISTED.sub("", _EXPORTED_TYPE.sub("", _EXPORT.sub(r"\1\2", text)))
    body = _IMPORT.sub(lambda match: _taken(match[1] or "", match[2]), body)
    if re.search(r"^(?:import|export)\b(?! ?\()", body, re.MULTILINE):
        raise ValueError("the harness imports or exports in a way that cannot be bundled")
    return body, exported


def _taken(names: str, file: str) -> str:
    """Return the statement that replaces an import."""
    written = [name.strip() for name in names.split(",")]
    values = [name.replace(" as ", ": ") for name in written if name and not name.startswith("type ")]
    return f"const {{ {', '.join(values)} }} = from_{file};\n" if values else ""
