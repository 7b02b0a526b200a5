"""Building blocks of the catalog's JSON Schema: closed objects, arrays, maps of names, and kinds of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]
"""A JSON Schema."""

TOKEN = r"[^\x00-,/:-@\[-\^`{-\x7f\s]+"
"""Pattern of a token, in the regular expressions that all languages share.

Of ASCII it allows letters, digits, `-`, `_` and `.`; the build checks the rest of Unicode.
"""

NAME = rf"^{TOKEN}(/{TOKEN})*$"
"""Pattern of the name of a collection."""

_VISIBLE = r"[^\x00-\x20\x7f-\xa0\u2028\u2029]"
LINE = rf"^{_VISIBLE}([^\x00-\x1f\x7f-\x9f\u2028\u2029]*{_VISIBLE})?$"
"""Pattern of one line of text, such as the name of a test."""

_SPACE = r"[ \t\n\r\f\v]*"
_UNIT = (
    "(?:u(?:s|secs?)|microseconds?|m(?:s|secs?)|milliseconds?|s(?:ecs?)?|seconds?|m(?:ins?)?|minutes?"
    "|h(?:rs?)?|hours?|d(?:ays?)?|w(?:ks?)?|weeks?)"
)
_PERIOD = rf"(?:{_SPACE}[0-9]{{1,18}}{_SPACE}{_UNIT}{_SPACE})+$"
_RFC3339 = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt](?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?"
    r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])$"
)
BOOLEAN: Schema = {"type": "boolean"}
U32: Schema = {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}
POINTER: Schema = {
    "type": "string",
    "format": "json-pointer",
    "pattern": "^(/([^/~]|~[01])+)*$",
    "errorMessage": "this is no JSON pointer such as '/id'",
    "x-code": "E302",
}
ON_SOURCE_RESET: Schema = {
    "description": "What becomes of the reader when another relation is given the name of its source, or the source is"
    " reset: `stop`, until somebody has looked at it, or `follow`, with the rows of the former relation taken back.",
    "enum": ["stop", "follow"],
    "default": "stop",
}
TIME: Schema = {
    "type": "string",
    "format": "date-time",
    "pattern": _RFC3339,
    "errorMessage": "this is no time such as 2023-01-23T01:00:00Z",
    "x-code": "E502",
}
DURATION: Schema = {
    "type": "string",
    "pattern": f"^{_PERIOD}",
    "errorMessage": "not a duration such as '15m', '24h' or '1h 30s'",
    "x-code": "E013",
}
TICK: Schema = {
    "type": "string",
    "pattern": f"^(?=[^1-9]*[1-9]){_PERIOD}",
    "errorMessage": "not a duration longer than 0s, such as '1s' or '5m'",
    "x-code": "E013",
}
STEP_TIME: Schema = {"type": "string", "pattern": rf"{_RFC3339}|^\+{_PERIOD}"}

NO_EFFECT = "x-no-effect"
"""Keyword of settings without effect; its value names the alternative, if there is one."""


def without_effect(schema: Schema, instead: str = "") -> Schema:
    """Return the schema of a setting that is accepted and has no effect.

    Args:
        schema: schema of the value.
        instead: alternative that has the intended effect; empty for none.
    """
    description = f"Accepted, and of no effect here{': ' if instead else ''}{instead}."
    return {**schema, "description": description, NO_EFFECT: instead}


EXPECT_PUB_ID: Schema = without_effect({"type": "string"})
DELETE: Schema = without_effect({**BOOLEAN, "default": False}, "leave it out of the catalog to remove it")
RESET: Schema = without_effect({**BOOLEAN, "default": False}, "'flowctl reset' starts a task over")


def ref(name: str) -> Schema:
    """Return a reference to a definition."""
    return {"$ref": f"#/$defs/{name}"}


def text(description: str, **keywords: Any) -> Schema:
    """Return the schema of a string."""
    return {"type": "string", "description": description, **keywords}


def array(description: str, items: Schema, types: Sequence[str] = ("array",), **keywords: Any) -> Schema:
    """Return the schema of an array, or of one of the other `types`."""
    return {"type": _type(types), "description": description, "items": items, **keywords}


def record(
    title: str,
    description: str,
    properties: Mapping[str, Schema],
    required: Sequence[str] = (),
    *,
    types: Sequence[str] = ("object",),
    **keywords: Any,
) -> Schema:
    """Return the schema of an object with these properties, or of one of the other `types`.

    Properties that begin with `x-` are free for authors, unless `patternProperties={}`.
    """
    return {
        "title": title,
        "description": description,
        "type": _type(types),
        "properties": dict(properties),
        "patternProperties": {"^x-": True},
        "additionalProperties": False,
        **({"required": list(required)} if required else {}),
        **keywords,
    }


def only_one(properties: Mapping[str, Schema], code: str, message: str, **keywords: Any) -> Schema:
    """Return the schema of an object with exactly one of these properties; `code` and `message` are for violations."""
    return {
        "type": "object",
        "properties": dict(properties),
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
        "errorMessage": message,
        "x-code": code,
        **keywords,
    }


def entries(description: str, values: Schema, *, types: Sequence[str] = ("object",), names: str = "") -> Schema:
    """Return the schema of a map from names to values; `names` is a pattern for the names."""
    return {
        "description": description,
        "type": _type(types),
        "additionalProperties": values,
        **({"propertyNames": {"pattern": names}} if names else {}),
    }


def shards(tick: str) -> Schema:
    """Return the schema of a task's shards, with `tick` as the default duration of transactions."""
    return record(
        "Shards",
        "How the task runs.",
        {
            "disable": {**BOOLEAN, "description": "Do not run the task.", "default": False},
            "maxTxnDuration": {
                **TICK,
                "description": "The tick: the grain of time in which documents combine, such as `1s`.",
                "default": tick,
            },
            "minTxnDuration": without_effect({**DURATION, "default": "0s"}, "'maxTxnDuration' is the tick"),
            "hotStandbys": without_effect({**U32, "default": 0}),
            "ringBufferSize": without_effect({**U32, "default": 65536}),
            "readChannelSize": without_effect({**U32, "default": 4096}),
            "flags": entries("Accepted, and of no effect here.", {}),
            "logLevel": {
                "description": "How much is logged.",
                "enum": ["error", "warn", "info", "debug", "trace"],
                "default": "info",
            },
        },
    )


def _type(types: Sequence[str]) -> str | list[str]:
    return types[0] if len(types) == 1 else list(types)
