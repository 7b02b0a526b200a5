"""Regular expressions of schemas, in ECMAScript's syntax: the validator's own engine runs them."""

from __future__ import annotations

from functools import cache

import jsonschema_rs


def matches(pattern: str, name: str) -> bool:
    """Return true if a regular expression matches some part of a property name, exactly as in validation."""
    return _compile(pattern).is_valid(name)


@cache
def _compile(pattern: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator({"pattern": pattern})
