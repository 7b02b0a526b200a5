"""Transactors: what is done with the documents that a task reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from derive.protocol.specs import CollectionSpec, InputSpec


class TaskSpec(Protocol):
    """What is known of every task, whatever it does with what it reads."""

    @property
    def name(self) -> str:
        """Unique among all tasks."""

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """What it reads, in catalog order."""

    @property
    def sources(self) -> Mapping[str, CollectionSpec]:
        """Each collection that it reads, by name."""

    @property
    def tick(self) -> int:
        """Length of its ticks, microseconds."""
