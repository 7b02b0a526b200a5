"""Configuration of databases that are files."""

from __future__ import annotations

from typing import Any


def file_schema(title: str) -> dict[str, Any]:
    """Return the JSON Schema of the configuration of an endpoint that is a file.

    Args:
        title: name of the database, for users.
    """
    path = {
        "title": "Path",
        "description": "The database's file; it is created if it is not there.",
        "type": "string",
        "minLength": 1,
    }
    return {
        "title": title,
        "type": "object",
        "required": ["path"],
        "properties": {"path": path},
        "additionalProperties": False,
    }
