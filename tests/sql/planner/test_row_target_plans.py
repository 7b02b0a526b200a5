"""Plans of views with set-returning functions: a row that a function returns does not carry what it was made from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from statement_oracle import planned

from derive.algebra.types import ARRAYS, Type
from derive.compute.plans.plan import Keyed, Plan, inputs_of
from derive.compute.plans.planning import plan_of


def parts_of(plan: Plan) -> Iterator[Plan]:
    yield plan
    for part in inputs_of(plan):
        yield from parts_of(part)


@pytest.mark.parametrize(
    ("query", "types"),
    [
        ("select a, generate_series(1, a) from t", (Type.INTEGER, Type.INTEGER)),
        ("select a, generate_series(1, a), generate_series(2, a) from t", (Type.INTEGER,) * 3),
        ("select a, string_to_table(c, ',') from t", (Type.INTEGER, Type.TEXT)),
        ("select generate_series(1, a), string_to_table(c, ','), a from t", (Type.INTEGER, Type.TEXT, Type.INTEGER)),
        ("select a, x, y from t, unnest(string_to_array(c, ','), string_to_array(c, ';')) u(x, y)", None),
    ],
)
def test_maintained_set_returning_functions_store_no_arrays(query: str, types: tuple[Type, ...] | None) -> None:
    """The size of a view is linear in the sizes of arrays, and each array is taken apart once."""
    plan = plan_of(planned(query).relation)

    keyed = [part for part in parts_of(plan) if isinstance(part, Keyed)]

    assert [part.types for part in keyed] == [types or (Type.INTEGER, Type.TEXT, Type.TEXT)]
    assert not [kind for part in parts_of(plan) for kind in part.types if kind in ARRAYS]
