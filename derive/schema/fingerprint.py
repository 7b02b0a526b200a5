"""Fingerprints of schemas: whether documents were validated against one that says the same."""

from __future__ import annotations

import hashlib

from derive.document.exact import dump_exact
from derive.document.pointer import JSON

_VALIDATOR = b"1 "
"""Changes when the validator is to look at documents again that an older one has passed."""


def fingerprint(schema: JSON) -> str:
    """A text that schemas share only if they are the same."""
    return hashlib.sha256(_VALIDATOR + dump_exact(schema)).hexdigest()
