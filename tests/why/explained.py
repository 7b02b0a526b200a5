"""Explanations of all documents of a world: how many keys a replay gives as they are stored."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conftest import World

from derive.why.audit import Audit, audit
from derive.why.explain import Explainer, Question, reasons_of
from derive.why.replay import past_of

BASE = 1_704_067_200_000_000
SECOND = 1_000_000


@contextmanager
def explainer_of(world: World) -> Iterator[Explainer]:
    with tempfile.TemporaryDirectory() as scratch:
        yield Explainer(world.catalog, world.store, Path(scratch))


def keys_of(world: World, name: str) -> list[bytes]:
    return sorted({row[2] for row in world.rows(name)})


def differing(world: World, name: str, *, singly: bool = False) -> list[bytes]:
    """The keys of a collection for which a replay differs: all keys in one replay, or some, each in its own."""
    keys = keys_of(world, name)
    if singly:
        keys = keys[:: max(1, len(keys) // 10)]
    groups = [frozenset([key]) for key in keys] if singly else [frozenset(keys)]
    with explainer_of(world) as explainer:
        return [key for group in groups for key in explainer.explain(name, Question(group)).differences()]


def audited(world: World, name: str) -> Audit:
    with tempfile.TemporaryDirectory() as scratch:
        return audit(world.store, world.catalog.derivations[name], Path(scratch), lambda _: None)


def assert_explained(world: World) -> None:
    """Every key of every derived collection is what a replay gives, and a replay of everything gives nothing else."""
    for name, spec in world.catalog.derivations.items():
        if spec.disabled or world.store.collection(name) is None:
            continue
        if any(part.has_steps for part in past_of(world.store, world.catalog.derivations[name]).parts):
            assert_reported(world, name)
            continue
        assert differing(world, name) == [], name
        result = audited(world, name)
        assert result.wrong_values == ()
        assert (result.differences, result.documents) == ((), len(world.rows(name))), name


def assert_reported(world: World, name: str) -> None:
    """A replay that differs has a reason."""
    question = Question(frozenset(keys_of(world, name)))
    with explainer_of(world) as explainer:
        explanation = explainer.explain(name, question)
        if explanation.differences():
            reasons = reasons_of(explainer, name, question, explanation)
            assert "differ in priority" in reasons[0], name


def advance(world: World, shards: int = 1) -> None:
    """Run all tasks until nothing is left to do; every edit is accepted."""
    run = world.run(shards=shards, accepted=list(world.catalog.derivations))
    while run.step():
        pass
    run.close()
