"""Checks of a derivation's module that languages share: names of methods, and permissions outside the sandbox."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from derive.errors import Issue
from derive.position import Position
from derive.protocol.specs import DerivationSpec


class AskedPermissions(Protocol):
    """Permissions that a module asks for; false if there are none, and in words as a text."""

    @property
    def position(self) -> Position | None:
        """Return the position of the permissions in the catalog."""

    def __bool__(self) -> bool: ...


def check_names(
    spec: DerivationSpec, method_of: Callable[[str], str], is_reserved: Callable[[str], bool]
) -> list[Issue]:
    """Return an issue for each transform whose method name is already taken or reserved.

    Args:
        spec: the derivation.
        method_of: returns the name of a transform's method.
        is_reserved: returns whether the runtime reserves the name of a method.
    """
    issues = []
    taken: dict[str, str] = {}
    for transform in spec.transforms:
        method = method_of(transform.name)
        if method in taken:
            message = f"transforms '{taken[method]}' and '{transform.name}' would both be the method '{method}'"
            issues.append(Issue("E532", message, transform.position, "rename one of them"))
        elif is_reserved(method):
            message = f"transform '{transform.name}' would be the method '{method}', which the runtime reserves"
            issues.append(Issue("E532", message, transform.position, "rename the transform"))
        taken.setdefault(method, transform.name)
    return issues


def refusal_of(spec: DerivationSpec, permissions: AskedPermissions) -> Issue | None:
    """Return an issue if a module asks for permissions that the run does not grant; otherwise None."""
    if not permissions or spec.limits.allows_permissions:
        return None
    message = f"the module of '{spec.name}' asks for permissions: {permissions}"
    hint = "if you trust the module, add --allow-permissions"
    return Issue("E534", message, permissions.position or spec.collection.position, hint)


def permissions_schema(net: dict[str, Any], path_pattern: str) -> dict[str, Any]:
    """Return the JSON Schema of permissions.

    Args:
        net: the JSON Schema of the permission to use the network.
        path_pattern: pattern of the path of a file or folder to read.
    """
    return {
        "title": "Permissions",
        "description": "Permissions of the module outside its sandbox; `flowctl run --allow-permissions` grants them.",
        "type": "object",
        "properties": {
            "net": net,
            "read": list_schema("Files and folders to read.", "the path of a file or folder", path_pattern),
            "env": list_schema(
                "Environment variables to read.", "the name of an environment variable", r"^[A-Za-z_][A-Za-z0-9_]*$"
            ),
        },
        "patternProperties": {"^x-": True},
        "additionalProperties": False,
    }


def list_schema(description: str, item: str, pattern: str) -> dict[str, Any]:
    """Return the JSON Schema of a list of texts.

    Args:
        description: description of the list.
        item: description of an item, such as `the path of a file`.
        pattern: pattern of the items.
    """
    desired = {"type": "string", "description": f"This is {item}.", "pattern": pattern}
    fault = {"errorMessage": f"this value is not {item}", "x-code": "E017"}
    return {"type": "array", "description": description, "items": {**desired, **fault}}
