"""What LATERAL becomes: its rows are those of PostgreSQL by other tests; here is what they cost."""

from statement_oracle import planned

from derive.algebra.relation import Join, Project, Relation, TopK
from derive.algebra.rewrite import inputs_of


def kinds(relation: Relation) -> list[str]:
    return [type(relation).__name__, *(name for child in inputs_of(relation) for name in kinds(child))]


def test_a_query_that_filters_is_a_join() -> None:
    relation = planned("select t.b, q.x from t, lateral (select u.n + t.a as x from u where u.a = t.a) q").relation

    assert kinds(relation) == ["Project", "Project", "Join", "Get", "Get"]
    assert isinstance(relation, Project)
    assert isinstance(relation.input, Project)
    assert isinstance(relation.input.input, Join)
    assert len(relation.input.input.predicates) == 1


def test_the_first_rows_of_each_are_those_of_each_key() -> None:
    relation = planned("select q.f from t, lateral (select f from u where u.a = t.a order by f limit 1) q").relation

    assert kinds(relation)[:5] == ["Project", "Project", "Join", "Get", "TopK"]
    first_rows = next(part for part in parts(relation) if isinstance(part, TopK))
    assert len(first_rows.keys) == 1


def parts(relation: Relation) -> list[Relation]:
    return [relation, *(part for child in inputs_of(relation) for part in parts(child))]
