"""Values of jsonb are in the order in which a real PostgreSQL has them."""

import pytest
from statement_oracle import Description, Refusal, description, postgres_description, postgres_rows, rows

ACCEPTED = [
    "select j from u order by j",
    "select j from u order by j desc limit 2",
    "select j, rank() over (order by j) from u",
    "select greatest(j, '[1]'), least(j, '{}') from u",
    "select a, max(a) over (order by j) from u",
    "select j from (values ('[]'::jsonb), ('null'), ('1'), ('\"a\"'), ('{}'), ('[1]'), ('[1,2]'), ('true'), ('\"b\"'), ('{\"a\":1}'), ('{\"b\":1}'), ('{\"aa\":1,\"b\":2}'), ('{\"a\":1,\"b\":2}'), ('[[]]'), ('[{}]'), ('[null]')) v(j) order by j",
    "select array_agg(j order by j) from (values ('[]'::jsonb), ('null'), ('1'), ('\"a\"'), ('[1]')) v(j)",
    "select distinct on (j) j, a from u order by j, a",
    "select j < '[1]', j >= 'null', j between 'null' and '5' from u",
]

REFUSED = [
    "select max(j) from u",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_jsonb_is_described_and_answered_alike(text: str) -> None:
    expected = postgres_description(text)

    assert isinstance(expected, Description)
    assert description(text) == expected
    if not expected.parameters:
        assert rows(text) == postgres_rows(text)


@pytest.mark.parametrize("text", REFUSED)
def test_jsonb_is_refused_alike(text: str) -> None:
    expected, ours = postgres_description(text), description(text)

    assert isinstance(expected, Refusal)
    assert isinstance(ours, Refusal)
    assert ours.sqlstate == expected.sqlstate
    assert expected.offset in {None, ours.offset}
