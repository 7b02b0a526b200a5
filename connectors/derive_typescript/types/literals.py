"""Constants of a schema as TypeScript's literal types: a misspelt constant does not compile."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from derive.document.pointer import JSON
from derive.schema.shape import type_of

_ORDER = ("object", "array", "boolean", "integer", "fractional", "string", "null")
_NAME = re.compile(r"[^\W\d_]\w*")
_LARGEST = 1.7e308
"""Larger numbers are infinite in JavaScript, and have no literal."""


def quoted(text: str) -> str:
    """Return a string literal; characters that UTF-8 cannot encode are escaped."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(text)
    return json.dumps(text, ensure_ascii=False)


def member(name: str) -> str:
    """Return the name of a member in source code, quoted if it is no identifier that begins with a letter."""
    return name if _NAME.fullmatch(name) and name.isidentifier() else quoted(name)


def literals(values: Iterable[JSON]) -> list[str]:
    """Return the literal types of values, each once: objects, arrays, booleans, numbers, strings, null."""
    ordered = sorted(values, key=lambda value: _ORDER.index(type_of(value)))
    types = list(dict.fromkeys(literal(value) for value in ordered))
    if "true" in types and "false" in types:
        index = min(types.index("true"), types.index("false"))
        types[index : index + 2] = ["boolean"]
    return types


def literal(value: JSON) -> str:
    """Return the type of one value."""
    if isinstance(value, dict):
        members = "; ".join(f"{member(name)}: {literal(item)}" for name, item in value.items())
        return f"{{ {members} }}" if members else "Record<string, never>"
    if isinstance(value, list):
        return f"[{', '.join(literal(item) for item in value)}]"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) > _LARGEST:
        return "number"
    return json.dumps(value)
