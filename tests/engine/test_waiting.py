"""The tasks that documents wait for."""

from __future__ import annotations

import pytest

from derive.engine.inputs import find_blamed

SOURCES = {"b": ["a"], "c": ["b", "x"], "d": ["c"], "x": ["root"]}


@pytest.mark.parametrize(
    ("stopped", "expected"),
    [
        ([], {}),
        (["a"], {"a": "a", "b": "a", "c": "a", "d": "a"}),
        (["b"], {"b": "b", "c": "b", "d": "b"}),
        (["x"], {"x": "x", "c": "x", "d": "x"}),
        (["a", "c"], {"a": "a", "b": "a", "c": "c", "d": "c"}),  # who has failed is to blame, whatever came before
        (["root", "d"], {"root": "root", "d": "d", "x": "root", "c": "root"}),
    ],
)
def test_what_a_task_reads_is_to_blame_for_it(stopped: list[str], expected: dict[str, str]) -> None:
    assert find_blamed(stopped, SOURCES) == expected


def test_tasks_that_read_one_another_wait_for_the_same_one() -> None:
    assert find_blamed(["a"], {"ping": ["pong", "a"], "pong": ["ping"]}) == {"a": "a", "ping": "a", "pong": "a"}
