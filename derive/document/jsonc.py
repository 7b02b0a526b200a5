"""JSON with comments and trailing commas, as in configuration files of tools."""

from __future__ import annotations

import json
import re

from derive.document.pointer import JSON

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_COMMENT = re.compile(rf"({_STRING})|//[^\n]*|/\*.*?\*/|\ufeff", re.DOTALL)
_TRAILING_COMMA = re.compile(rf"({_STRING})|,(?=\s*[}}\]])")


def plain_json(text: str) -> str:
    """Replace comments and trailing commas by spaces, so that all other text keeps its position."""

    def blank(match: re.Match[str]) -> str:
        return match[0] if match[1] else re.sub(r"[^\r\n]", " ", match[0])

    return _TRAILING_COMMA.sub(blank, _COMMENT.sub(blank, text))


def parse_jsonc(text: str) -> JSON:
    """Return the value of a text; None if it is no JSON, with or without comments."""
    try:
        return json.loads(plain_json(text))
    except ValueError:
        return None
