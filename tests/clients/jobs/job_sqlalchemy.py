"""SQLAlchemy and Alembic: tables from models, the ORM, and migrations. PG* of the environment name the server."""

import asyncio
import enum
import io
import os
import tempfile
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from same import same
from sqlalchemy.dialects.postgresql import ARRAY, INET, JSONB, aggregate_order_by, insert
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    aliased,
    joinedload,
    mapped_column,
    relationship,
    selectinload,
    subqueryload,
)


def url(driver: str) -> sa.URL:
    host, port = os.environ["PGHOST"], os.environ.get("PGPORT")
    names = {"username": os.environ["PGUSER"], "database": os.environ["PGDATABASE"]}
    if host.startswith("/"):
        return sa.URL.create(f"postgresql+{driver}", **names, query={"host": host})
    return sa.URL.create(f"postgresql+{driver}", **names, host=host, port=int(port or 5432))


class Base(DeclarativeBase):
    pass


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"


groups = sa.Table(
    "sa_groups",
    Base.metadata,
    sa.Column("person", sa.ForeignKey("sa_people.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("team", sa.ForeignKey("sa_teams.id", ondelete="CASCADE"), primary_key=True),
)


class Team(Base):
    __tablename__ = "sa_teams"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(sa.String(30), unique=True)


class Person(Base):
    __tablename__ = "sa_people"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    name: Mapped[str] = mapped_column(sa.String(30), index=True)
    born: Mapped[date | None]
    seen: Mapped[datetime] = mapped_column(sa.DateTime(timezone=True), server_default=sa.func.now())
    level: Mapped[Level] = mapped_column(sa.Enum(Level, native_enum=False), default=Level.LOW)
    settings: Mapped[dict[str, object]] = mapped_column(JSONB, default=dict)
    tags: Mapped[list[str]] = mapped_column(ARRAY(sa.String), default=list)
    address: Mapped[str | None] = mapped_column(INET)
    wait: Mapped[timedelta | None]
    teams: Mapped[list[Team]] = relationship(secondary=groups)
    orders: Mapped[list["Order"]] = relationship(back_populates="person", cascade="all, delete-orphan")
    boss_id: Mapped[uuid.UUID | None] = mapped_column(sa.ForeignKey("sa_people.id", ondelete="SET NULL"))
    boss: Mapped["Person | None"] = relationship(remote_side="Person.id")


class Order(Base):
    __tablename__ = "sa_orders"
    id: Mapped[int] = mapped_column(sa.Identity(), primary_key=True)
    person_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("sa_people.id"))
    amount: Mapped[Decimal] = mapped_column(sa.Numeric(10, 2))
    twice: Mapped[Decimal] = mapped_column(sa.Numeric(10, 2), sa.Computed("amount * 2", persisted=True))
    version: Mapped[int] = mapped_column()
    person: Mapped[Person] = relationship(back_populates="orders")
    __mapper_args__ = {"version_id_col": version}
    __table_args__ = (
        sa.CheckConstraint("amount >= 0", name="amount_positive"),
        sa.Index("sa_orders_amount", "amount", sa.text("person_id")),
    )


def orm(engine: sa.Engine) -> None:
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        red, blue = Team(name="red"), Team(name="blue")
        ann = Person(name="Ann", born=date(1990, 1, 2), teams=[red, blue], settings={"a": {"b": 1}}, tags=["x", "y"])
        ben = Person(
            name="Ben", boss=ann, teams=[red], address="10.0.0.1", wait=timedelta(days=1, seconds=2), level=Level.HIGH
        )
        ann.orders = [Order(amount=Decimal(at)) for at in range(3)]
        session.add_all([ann, ben])
        session.flush()
        same([order.twice for order in ann.orders], [0, 2, 4])
        same(session.scalar(sa.select(sa.func.count()).select_from(Order).join(Person).where(Person.name == "Ann")), 3)
        try:
            with session.begin_nested():
                session.add(Team(name="red"))
                session.flush()
        except sa.exc.IntegrityError as error:
            same(error.orig.diag.constraint_name, "sa_teams_name_key")
        with session.begin_nested():
            session.add(Team(name="green"))
        session.commit()
        assert ben.seen.tzinfo is not None
        min(ann.orders, key=lambda order: order.amount).amount += 5
        ann.orders.remove(max(ann.orders, key=lambda order: order.id))
        session.commit()
        same({order.twice for order in ann.orders}, {10, 2})
    with Session(engine) as session:
        people = session.scalars(
            sa.select(Person)
            .options(selectinload(Person.orders), joinedload(Person.boss), subqueryload(Person.teams))
            .order_by(Person.name)
        ).all()
        same(
            [(one.name, len(one.orders), one.boss and one.boss.name, len(one.teams)) for one in people],
            [
                ("Ann", 2, None, 2),
                ("Ben", 0, "Ann", 1),
            ],
        )
        boss = aliased(Person)
        same(session.execute(sa.select(Person.name, boss.name).join(boss, Person.boss)).all(), [("Ben", "Ann")])
        same(session.scalar(sa.select(Person.name).where(Person.settings["a"]["b"].as_integer() == 1)), "Ann")
        same(session.scalar(sa.select(Person.name).where(Person.tags.contains(["x"]))), "Ann")
        same(session.scalar(sa.select(Person.name).where(sa.any_(Person.tags) == "y")), "Ann")
        assert session.scalar(sa.select(Person.level).where(Person.name == "Ben")) is Level.HIGH
        same(str(people[1].address), "10.0.0.1")
        same(people[1].wait, timedelta(days=1, seconds=2))
        locked = session.scalars(sa.select(Order).where(Order.amount > 0).with_for_update()).all()
        same(len(locked), 2)
        session.execute(
            sa.update(Order).where(Order.amount > 0).values(amount=Order.amount + 1, version=Order.version + 1)
        )
        same(session.scalar(sa.select(sa.func.sum(Order.amount))), 8)
        session.delete(session.scalar(sa.select(Person).where(Person.name == "Ann")))
        session.commit()
        assert session.scalar(sa.select(Person.boss_id)) is None


def core(engine: sa.Engine) -> None:
    teams = Team.__table__
    with engine.begin() as connection:
        added = insert(teams).values([{"name": "red"}, {"name": "pink"}])
        upsert = added.on_conflict_do_update(index_elements=["name"], set_={"name": added.excluded.name + "!"})
        returned = connection.execute(upsert.returning(teams.c.name)).scalars().all()
        assert sorted(returned) == ["pink", "red!"], returned
        skipped = insert(teams).values(name="pink").on_conflict_do_nothing().returning(teams.c.id)
        same(connection.execute(skipped).all(), [])
        listed = (
            connection.execute(
                sa.insert(teams).returning(teams.c.id, sort_by_parameter_order=True),
                [{"name": f"t{at}"} for at in range(100)],
            )
            .scalars()
            .all()
        )
        same(len(listed), 100)
        same(connection.execute(teams.delete().where(teams.c.name.like("t%"))).rowcount, 100)
        names = sa.select(sa.func.array_agg(aggregate_order_by(teams.c.name, teams.c.name.desc()))).scalar_subquery()
        ranked = sa.select(teams.c.name, sa.func.row_number().over(order_by=teams.c.name).label("n")).cte("ranked")
        same(connection.execute(sa.select(ranked.c.name).where(ranked.c.n == 1)).scalar(), "blue")
        same(connection.execute(sa.select(names)).scalar(), ["red!", "pink", "green", "blue"])
        grouped = sa.select(teams.c.id, teams.c.name, sa.func.count()).group_by(teams.c.id).order_by(teams.c.name)
        same([row[1:] for row in connection.execute(grouped)], [("blue", 1), ("green", 1), ("pink", 1), ("red!", 1)])
        stream = connection.execution_options(stream_results=True, max_row_buffer=2).execute(sa.select(teams.c.name))
        same(len(stream.fetchmany(3)), 3)
        stream.close()
    inspector = sa.inspect(engine)
    assert {"sa_people", "sa_orders", "sa_teams", "sa_groups"} <= set(inspector.get_table_names())
    same(inspector.get_pk_constraint("sa_groups")["constrained_columns"], ["person", "team"])
    same([key["options"] for key in inspector.get_foreign_keys("sa_groups")], [{"ondelete": "CASCADE"}] * 2)
    same([one["name"] for one in inspector.get_check_constraints("sa_orders")], ["amount_positive"])
    same([one["name"] for one in inspector.get_indexes("sa_orders")], ["sa_orders_amount"])
    same([one["name"] for one in inspector.get_unique_constraints("sa_teams")], ["sa_teams_name_key"])
    reflected = sa.MetaData()
    reflected.reflect(engine)
    assert isinstance(reflected.tables["sa_people"].c.id.type, sa.Uuid)
    assert reflected.tables["sa_orders"].c.twice.computed is not None


ENVIRONMENT = """
from alembic import context
config = context.config
with config.attributes["engine"].connect() as connection:
    context.configure(connection=connection, target_metadata=config.attributes["metadata"], compare_server_default=True)
    with context.begin_transaction():
        context.run_migrations()
"""


def models(version: int) -> sa.MetaData:
    metadata = sa.MetaData()
    books = [
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("title", sa.String(50) if version < 2 else sa.String(100), nullable=version < 2),
        sa.Column("pages", sa.Integer if version < 2 else sa.BigInteger, server_default="1"),
    ]
    if version == 1:
        books += [sa.Column("old", sa.Text, index=True)]
    else:
        books += [
            sa.Column("author", sa.Integer, sa.ForeignKey("al_authors.id", name="al_author", ondelete="CASCADE")),
            sa.Column("made", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
            sa.UniqueConstraint("title", "author", name="al_title_author"),
        ]
        sa.Table(
            "al_authors",
            metadata,
            sa.Column("id", sa.Integer, primary_key=True),
            sa.Column("name", sa.Text, comment="a name"),
        )
    table = sa.Table("al_books", metadata, *books)
    sa.Index("al_books_title", table.c.title, unique=version == 2)
    return metadata


def alembic(engine: sa.Engine) -> None:
    Base.metadata.drop_all(engine)
    with tempfile.TemporaryDirectory() as folder:
        config = Config(str(Path(folder, "alembic.ini")), stdout=io.StringIO())
        config.set_main_option("script_location", str(Path(folder, "scripts")))
        config.set_main_option("path_separator", "os")
        command.init(config, str(Path(folder, "scripts")))
        Path(folder, "scripts", "env.py").write_text(ENVIRONMENT)
        config.attributes["engine"] = engine
        for version in (1, 2):
            config.attributes["metadata"] = models(version)
            command.revision(config, f"v{version}", autogenerate=True)
            command.upgrade(config, "head")
            command.check(config)
            if version == 1:
                with engine.begin() as connection:
                    connection.execute(sa.text("INSERT INTO al_books (title, old) VALUES ('a', 'x'), ('b', 'y')"))
        with engine.begin() as connection:
            same(
                connection.execute(sa.text("SELECT title, pages, author FROM al_books ORDER BY 1")).all(),
                [
                    ("a", 1, None),
                    ("b", 1, None),
                ],
            )
        command.downgrade(config, "-1")
        with engine.connect() as connection:
            same(compare_metadata(MigrationContext.configure(connection), models(1)), [])
        command.upgrade(config, "head")
        command.downgrade(config, "base")
        command.current(config)
        same(sa.inspect(engine).get_table_names(), ["alembic_version"])
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE alembic_version"))


async def asynchronous() -> None:
    engine = create_async_engine(url("asyncpg"))
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        await connection.execute(
            sa.insert(Person),
            [{"name": "Eve", "id": uuid.uuid4(), "tags": ["z"], "seen": datetime(2024, 1, 1, tzinfo=UTC)}],
        )
        rows = (await connection.execute(sa.select(Person.name, Person.tags, Person.seen))).all()
        same(rows, [("Eve", ["z"], datetime(2024, 1, 1, tzinfo=UTC))])
        async for row in await connection.stream(sa.select(Person.settings)):
            same(row, ({},))
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.drop_all)
    await engine.dispose()


for driver in ("psycopg", "psycopg2"):
    made = sa.create_engine(url(driver))
    for step in (orm, core, alembic):
        step(made)
        print(f"{driver} {step.__name__}: done")
    made.dispose()
asyncio.run(asynchronous())
print("asyncpg: done")
