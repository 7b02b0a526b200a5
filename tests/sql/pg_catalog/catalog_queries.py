"""Catalog queries over a few relations, which are planned and evaluated without a server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from derive.algebra.types import Datum, Row, Type
from derive.compute import oneshot
from derive.functions.statement_context import StatementContext, each_in_context
from derive.sql.backends import Backend
from derive.sql.catalog.system_relations import system_relation
from derive.sql.parser.parse import parse
from derive.sql.parser.statement import SelectStatement
from derive.sql.pg_catalog.object_index import ObjectIndex
from derive.sql.pg_catalog.objects import CatalogObjects, ObjectKind, ObjectRelation, SessionFacts
from derive.sql.pg_catalog.snapshot import CatalogSnapshot, UserCatalog
from derive.sql.planner.interfaces import NamedColumn, NamedRelation
from derive.sql.planner.plan import plan_query
from derive.sql.planner.planned import PlannedQuery, bind
from derive.sql.preparation import KNOWN_SETTINGS

OBJECTS = CatalogObjects(
    (
        ObjectRelation(
            1,
            "public",
            "orders",
            ObjectKind.TABLE,
            (
                NamedColumn("id", Type.BIGINT, is_nullable=False),
                NamedColumn("customer", Type.TEXT),
                NamedColumn("amount", Type.NUMERIC),
                NamedColumn("at", Type.TIMESTAMPTZ),
            ),
            indexes=(
                ObjectIndex(
                    4,
                    "orders_by_id",
                    (0,),
                    "CREATE INDEX orders_by_id ON public.orders USING btree (id)",
                    (NamedColumn("id", Type.BIGINT, is_nullable=False),),
                    ("id",),
                    (0,),
                ),
            ),
            comment="what people order",
        ),
        ObjectRelation(
            2,
            "public",
            "totals",
            ObjectKind.MATERIALIZED_VIEW,
            (NamedColumn("customer", Type.TEXT), NamedColumn("total", Type.NUMERIC)),
            definition="SELECT customer, sum(amount) AS total FROM orders GROUP BY customer",
        ),
        ObjectRelation(
            3,
            "public",
            "large",
            ObjectKind.VIEW,
            (NamedColumn("id", Type.BIGINT), NamedColumn("document", Type.JSONB)),
            definition="SELECT id FROM orders WHERE amount > 100",
        ),
        ObjectRelation(5, "acme", "acmeBank/balances", ObjectKind.TABLE, (NamedColumn("account", Type.TEXT),)),
    )
)
SETTINGS = {name: setting.default for name, setting in KNOWN_SETTINGS.items()}


class SystemNames:
    """Names of system relations alone."""

    zone = None

    def lookup(self, schema: str | None, name: str) -> NamedRelation | None:
        return system_relation(schema, name)

    def candidates(self) -> Iterable[str]:
        return ()

    def function(self, schema: str | None, name: str, types: Sequence[Type]) -> None:
        return None

    def domain(self, name: str) -> None:
        return None


def planned(text: str, types: Sequence[Type | None] = ()) -> PlannedQuery:
    """The plan of a SELECT."""
    statement = parse(text)
    assert isinstance(statement, SelectStatement)
    return plan_query(statement.query, SystemNames(), types)


def ask(
    text: str,
    *arguments: Datum,
    objects: CatalogObjects = OBJECTS,
    user: str = "flow",
    settings: Mapping[str, str] = SETTINGS,
    backends: Sequence[Backend] = (),
) -> list[Row]:
    """The rows of a query in a session."""
    snapshot = CatalogSnapshot(objects)
    query = bind(planned(text), arguments, 0, user)
    context = StatementContext(UserCatalog(snapshot, user), settings.get, lambda name, values: f"{name}{values}", 7)
    facts = SessionFacts(settings, backends, user)
    batches = oneshot.evaluate(
        query.relation, query.finishing, lambda id_, _: iter((snapshot.rows(id_, lambda: facts),))
    )
    return [row for batch in each_in_context(context, batches) for row in batch]
