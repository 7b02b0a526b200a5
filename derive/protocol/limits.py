"""Limits for the resources of lambdas."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LambdaLimits:
    """Limits that the person who runs a catalog sets for its lambdas.

    Attributes:
        answer_seconds: time limit of a module for one document.
        heap_megabytes: heap limit of one process.
        allows_permissions: true to grant the permissions that authors request; false to make a request an error.
        sqlite_seconds: time limit of SQL for one document.
        sqlite_megabytes: limit for the growth of SQLite's heap by the SQL for one document.
    """

    answer_seconds: float = 60.0
    heap_megabytes: int = 512
    allows_permissions: bool = False
    sqlite_seconds: float = 60.0
    sqlite_megabytes: int = 1024
