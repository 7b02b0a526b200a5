"""Regular expressions of schemas. They are ECMAScript's, not Python's, so the validator's own engine runs them."""

from __future__ import annotations

from functools import cache

import jsonschema_rs


def matches(pattern: str, name: str) -> bool:
    """Whether a property name matches a regular expression somewhere, exactly as validation has it."""
    return _compile(pattern).is_valid(name)


@cache
def _compile(pattern: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator({"pattern": pattern})
