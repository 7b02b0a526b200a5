"""How much of the machine lambdas may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LambdaLimits:
    """How much a person who runs a catalog lets its lambdas take.

    Attributes:
        answer_seconds: how long a module may take for one document.
        heap_megabytes: how large the heap of one process may grow.
        allows_permissions: whether what authors ask for is granted; if not, asking is an error.
        sqlite_seconds: how long SQL may take for one document.
        sqlite_megabytes: by how much one document's SQL may have the heap of SQLite grow.
    """

    answer_seconds: float = 60.0
    heap_megabytes: int = 512
    allows_permissions: bool = False
    sqlite_seconds: float = 60.0
    sqlite_megabytes: int = 1024
