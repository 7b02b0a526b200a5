"""Names come to mean other relations while readers, views and indexes of the former ones live: each keeps its relation."""

from __future__ import annotations

import pytest
from random_names import made

IN_SAMPLE = 1
"""Number of scripts in `make test`, which are shorter."""


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[] if seed < IN_SAMPLE else pytest.mark.torture) for seed in range(100)]
)
def test_random_scripts_about_names_equal_postgresql(seed: int) -> None:
    """Law: relations, also of reused names, have the rows of PostgreSQL, through all doors, and after any crash."""
    script = made(seed, 12 if seed < IN_SAMPLE else 25)
    assert not script.difference, "\n".join([script.difference, *script.texts])
