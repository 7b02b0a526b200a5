"""Whatever is asked for, and whatever happens: a view is what evaluation from scratch gives, at every time."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st
from random_relations import COLLECTIONS, RandomRelations, collections, random_changes
from relations_sample import shown

from derive.algebra.relation import Get, Relation
from derive.algebra.types import Row
from derive.compute.instance import Instance, can_follow_time
from derive.compute.oneshot import at_time, evaluate
from derive.errors import SqlError

EXAMPLES = int(os.environ.get("FLOW_LAW_EXAMPLES", "10"))


class History:
    """An instance with a few views, and collections that change."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = Random(seed)
        self.folder = folder
        self.collections = collections()
        self.live: dict[int, list[Row]] = {number: [] for number in COLLECTIONS}
        self.views: dict[int, Relation] = {}
        self.instance = Instance(folder)
        self.time = 1

    def change(self) -> None:
        """A tick in which rows of some collections come and go."""
        self.time += self.random.randrange(1, 4)
        for number, collection in self.collections.items():
            if self.random.random() < 0.6:
                changes = random_changes(self.random, self.live[number], collection.types)
                collection.change(self.time, changes)
        for collection in self.collections.values():
            collection.seal(self.time + 1)

    def define(self, relation: Relation) -> None:
        """Maintain a view."""
        identifier = 100 + len(self.views)
        self.views[identifier] = relation
        self.maintain(identifier, self.time)

    def maintain(self, identifier: int, time: int) -> None:
        """Maintain a view from a time on."""
        inputs = {number: collection.since(time) for number, collection in self.collections.items()}
        self.instance.maintain(identifier, self.views[identifier], time, inputs)

    def settle(self) -> None:
        """Work until there is none."""
        while self.instance.step():
            pass

    def restart(self) -> None:
        """Another instance goes on in the same folder."""
        self.instance.close()
        self.instance = Instance(self.folder)
        for identifier in self.views:
            self.maintain(identifier, self.instance.frontiers(identifier)[1] - 1)

    def check(self, *, can_fail: bool) -> None:
        """Every view, at every time that is known."""
        for identifier, relation in self.views.items():
            since, upper = self.instance.frontiers(identifier)
            assert upper > self.time
            for time in range(since, self.time + 1):
                maintained, scratch = self.maintained(identifier, time), self.from_scratch(relation, time)
                # Either may come to its rows without having looked at one that has no value.
                is_lenient = can_fail and (isinstance(maintained, str) or isinstance(scratch, str))
                assert maintained == scratch or is_lenient, (relation, time)

    def maintained(self, identifier: int, time: int) -> Counter[Row] | str:
        """The rows of a view, or the SQLSTATE of its error."""
        view = Get(identifier, self.views[identifier].types)
        try:
            return Counter(row for batch in self.instance.peek(view, as_of=time) for row in batch)
        except SqlError as exc:
            return exc.sqlstate

    def from_scratch(self, relation: Relation, time: int) -> Counter[Row] | str:
        """The same of a relation."""
        try:
            batches = evaluate(
                at_time(relation, time), shown(relation), lambda number, _: self.collections[number].at(time)
            )
            return Counter(row for batch in batches for row in batch)
        except SqlError as exc:
            return exc.sqlstate


def maintainable(relations: RandomRelations, depth: int) -> Relation:
    """A relation that can be maintained."""
    while True:
        relation = relations.relation(depth)
        if can_follow_time(relation):
            return relation


def run(seed: int, *, can_fail: bool = False, is_temporal: bool = False, steps: int = 8) -> None:
    """One random history."""
    with TemporaryDirectory() as folder:
        history = History(seed, Path(folder))
        random = history.random
        relations = RandomRelations(random, can_fail, is_temporal)
        for _ in range(steps):
            history.change()
            if len(history.views) < 3 and random.random() < 0.7:
                history.define(maintainable(relations, random.randrange(1, 4)))
            history.settle()
            if random.random() < 0.2 and history.views:
                history.restart()
                history.settle()
            if random.random() < 0.3 and history.views:
                identifier = random.choice(list(history.views))
                history.instance.allow_compaction(identifier, random.randrange(history.time + 1))
                history.settle()
        history.check(can_fail=can_fail)
        history.instance.close()


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 1 << 32))
def test_views_equal_recomputation(seed: int) -> None:
    """At every time from `since` to `upper`, after restarts and compaction."""
    run(seed)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 1 << 32))
def test_views_with_errors_equal_recomputation(seed: int) -> None:
    """Where expressions may have no value, and neither a view nor scratch has met one, both have the same rows."""
    run(seed, can_fail=True)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 1 << 32))
def test_temporal_views_equal_recomputation(seed: int) -> None:
    """Rows come and go on time, without and with changes of the inputs, after restarts and compaction."""
    run(seed, is_temporal=True)
