"""Functions of the session: the session's value replaces the call before a query runs."""

from __future__ import annotations

from derive.algebra.types import Type
from derive.functions.function import Function, Functions

USER_FUNCTIONS = ("current_user", "current_role", "session_user", "user")
"""Functions that return the user who is logged in."""

FUNCTIONS = Functions()
for name in USER_FUNCTIONS:
    FUNCTIONS.add(Function(name, name, (), Type.TEXT, lambda: "flow", can_fail=False, is_volatile=True))
for name, value in (("current_schema", "public"), ("current_catalog", "flow"), ("current_database", "flow")):
    FUNCTIONS.add(Function(name, name, (), Type.TEXT, lambda value=value: value, can_fail=False))
