"""Fingerprints of schemas, which record the schema against which documents were validated."""

from __future__ import annotations

import hashlib

from derive.document.exact import dump_exact
from derive.document.pointer import JSON

_VALIDATOR = b"1 "
"""Version of the validator; a new version makes stored documents be validated again."""


def fingerprint(schema: JSON) -> str:
    """Return a text that is equal for equal schemas only."""
    return hashlib.sha256(_VALIDATOR + dump_exact(schema)).hexdigest()
