"""A toy session that also answers what clients ask about schemas, tables and types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import apsw
from toy_session import ToySession

from derive.algebra.types import Datum, Type
from derive.sql.pg_catalog.effects import Effect
from derive.sql.pg_catalog.objects import (
    CatalogObjects,
    ObjectColumn,
    ObjectIndex,
    ObjectKind,
    ObjectRelation,
    SessionFacts,
)
from derive.sql.pg_catalog.session import DescribingSession

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


class Deaf:
    """Functions that do nothing."""

    def begin(self) -> None: ...

    def ending(self, stop: Callable[[], None]) -> AbstractContextManager[None]:
        return nullcontext()

    async def call(self, effect: Effect) -> Datum:
        return effect.function


class CatalogSession(DescribingSession):
    """A toy session that answers questions about a few relations that are not there."""

    def __init__(self, database: apsw.Connection, begun: Mapping[str, str]) -> None:
        toy = ToySession(database, begun)
        super().__init__(toy, lambda: OBJECTS, lambda: SessionFacts(toy.parameters), Deaf())
