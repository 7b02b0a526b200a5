"""Random scripts of SQL have the outcomes of a PostgreSQL, also in maintained views, after restarts, through all doors."""

from __future__ import annotations

import pytest
from random_scripts import made

IN_SAMPLE = 2
"""Number of scripts in `make test`."""


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[] if seed < IN_SAMPLE else pytest.mark.torture) for seed in range(100)]
)
def test_random_scripts_equal_postgresql(seed: int) -> None:
    """Law: statements, one-off queries and maintained views have the rows, types and errors of PostgreSQL."""
    script = made(seed, 25)
    assert not script.difference, "\n".join([script.difference, *script.texts])
