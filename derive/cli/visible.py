"""Untrusted text for a terminal: control characters are shown as escapes, and not sent.

A document, a lambda or an endpoint may contain escape sequences, with which a terminal hides lines, renames windows or
fills the clipboard. All commands that print such text for people use this module; JSON and raw data stay unchanged.
"""

from __future__ import annotations

import re

_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"  # text direction, line separators
)
_SHORT = {"\r": "\\r", "\n": "\\n", "\b": "\\b", "\f": "\\f"}


def visible(text: str) -> str:
    r"""Return a text with each control character as an escape; ends of lines and tabs stay.

    >>> print(visible("a\x1b[2Jb\u202ec\rd"))
    a\x1b[2Jb\u202ec\rd
    """
    return _CONTROLS.sub(_escape, text)


def visible_line(text: str) -> str:
    r"""Return a text with each control character as an escape, ends of lines too.

    >>> print(visible_line("a\nb"))
    a\nb
    """
    return visible(text).replace("\n", "\\n")


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
