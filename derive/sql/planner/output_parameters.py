"""Output parameters of calls: JDBC sends `{? = call f(?)}` as `f($1, $2)`, where `$1` has the type void."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from derive.sql.parser.ast import FunctionCall, ParameterReference

T = TypeVar("T")


def without_outputs(node: T, indexes: Collection[int]) -> T:
    """Return a part of a statement whose function calls lack some parameters as arguments.

    Args:
        node: the part.
        indexes: indexes of the parameters.
    """

    def kept(part: Any) -> Any:
        if isinstance(part, tuple):
            return tuple(map(kept, part))
        if not is_dataclass(part) or isinstance(part, type):
            return part
        changed = {field.name: kept(getattr(part, field.name)) for field in fields(part)}
        if isinstance(part, FunctionCall):
            changed["arguments"] = tuple(
                argument
                for argument in changed["arguments"]
                if not (isinstance(argument, ParameterReference) and argument.index in indexes)
            )
        return replace(part, **changed)

    result: T = kept(node)
    return result
