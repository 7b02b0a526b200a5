"""A toy session that also answers what clients ask about schemas, tables and types."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from toy_session import ToySession

from derive.adapter.outcome import Prepared, Result
from derive.adapter.pg_catalog.objects import CatalogObjects, ObjectColumn, ObjectIndex, ObjectKind, ObjectRelation
from derive.adapter.pg_catalog.query import CatalogQuery, answer, is_catalog_query, prepare
from derive.compute.algebra.types import Datum, Row, Type

OBJECTS = CatalogObjects(
    (
        ObjectRelation(
            1,
            "public",
            "orders",
            ObjectKind.TABLE,
            (
                ObjectColumn("id", Type.BIGINT, is_nullable=False),
                ObjectColumn("customer", Type.TEXT),
                ObjectColumn("amount", Type.NUMERIC),
                ObjectColumn("at", Type.TIMESTAMPTZ),
            ),
            indexes=(
                ObjectIndex(4, "orders_by_id", (0,), "CREATE INDEX orders_by_id ON public.orders USING btree (id)"),
            ),
            comment="what people order",
        ),
        ObjectRelation(
            2,
            "public",
            "totals",
            ObjectKind.MATERIALIZED_VIEW,
            (ObjectColumn("customer", Type.TEXT), ObjectColumn("total", Type.NUMERIC)),
            definition="SELECT customer, sum(amount) AS total FROM orders GROUP BY customer",
        ),
        ObjectRelation(
            3,
            "public",
            "large",
            ObjectKind.VIEW,
            (ObjectColumn("id", Type.BIGINT), ObjectColumn("document", Type.JSONB)),
            definition="SELECT id FROM orders WHERE amount > 100",
        ),
        ObjectRelation(5, "acme", "acmeBank/balances", ObjectKind.TABLE, (ObjectColumn("account", Type.TEXT),)),
    )
)


class CatalogSession(ToySession):
    """Answers catalog queries over a few relations that are not there otherwise."""

    async def prepare(self, text: str, oids: Sequence[int]) -> Prepared:
        if not is_catalog_query(text):
            return await super().prepare(text, oids)
        query = prepare(text, OBJECTS, oids)
        return Prepared(text, query.parameters, query.columns, query)

    async def execute(self, prepared: Prepared, arguments: Sequence[Datum]) -> Result:
        if not isinstance(prepared.plan, CatalogQuery):
            return await super().execute(prepared, arguments)
        rows = answer(prepared.plan, OBJECTS, arguments, self.parameters)

        async def batches() -> AsyncIterator[Sequence[Row]]:
            yield rows

        return Result(lambda count: f"SELECT {count}", prepared.columns, batches())
