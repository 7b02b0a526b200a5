"""Django: migrations forwards and backwards, contrib's tables, and the ORM. PG* of the environment name the server."""

import io
import os
import sys
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path

import django
from django.conf import settings

sys.path.insert(0, str(Path(__file__).parent))
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": os.environ["PGDATABASE"],
            "USER": os.environ["PGUSER"],
            "HOST": os.environ["PGHOST"],
            "PORT": os.environ.get("PGPORT", ""),
        }
    },
    INSTALLED_APPS=[
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "django.contrib.sessions",
        "django.contrib.postgres",
        "django_shop",
    ],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    SECRET_KEY="of a test",
    USE_TZ=True,
)
django.setup()

from django.contrib.admin.models import LogEntry
from django.contrib.auth import authenticate
from django.contrib.auth.models import Group, Permission, User
from django.contrib.postgres.aggregates import ArrayAgg, StringAgg
from django.contrib.sessions.backends.db import SessionStore
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.db.models import Avg, Case, Count, Exists, F, Max, OuterRef, Prefetch, Q, Subquery, Sum, Value, When, Window
from django.db.models.functions import Coalesce, Concat, ExtractYear, Lower, RowNumber, TruncMonth, Upper
from django_shop.models import Customer, Line, Order
from same import same


def migrations() -> None:
    call_command("migrate", verbosity=0)
    call_command("migrate", "django_shop", "0001", verbosity=0)
    call_command("migrate", verbosity=0)
    call_command("migrate", verbosity=0)
    call_command("makemigrations", "--check", "--dry-run", verbosity=1)
    with connection.cursor() as cursor:
        names = connection.introspection.table_names(cursor)
        constraints = connection.introspection.get_constraints(cursor, "django_shop_order")
    assert {"auth_user", "django_session", "django_admin_log", "django_shop_line"} <= set(names), names
    assert {"amount_positive", "one_a_day", "paid_placed"} <= set(constraints), constraints
    shown = io.StringIO()
    call_command("inspectdb", stdout=shown)
    assert "class DjangoShopOrder(models.Model)" in shown.getvalue()


def contrib() -> None:
    user = User.objects.create_user("ann", "ann@example.org", "secret")
    boss = User.objects.create_superuser("boss", "boss@example.org", "secret")
    group = Group.objects.create(name="editors")
    group.permissions.set(Permission.objects.filter(codename__startswith="add_"))
    user.groups.add(group)
    same(authenticate(username="ann", password="secret"), user)
    assert User.objects.get(pk=user.pk).has_perm("auth.add_user")
    assert boss.has_perm("django_shop.delete_order")
    session = SessionStore()
    session["cart"] = [1, 2]
    session.save()
    same(SessionStore(session.session_key)["cart"], [1, 2])
    session.set_expiry(-1)
    session.save()
    SessionStore.clear_expired()
    LogEntry.objects.log_actions(boss.pk, [user], 2, "changed", single_object=True)
    same(LogEntry.objects.select_related("user", "content_type").get().user, boss)


def writes() -> None:
    ann, created = Customer.objects.get_or_create(
        name="Ann", defaults={"email": "a@example.org", "tags": ["new", "good"]}
    )
    assert created
    assert not Customer.objects.get_or_create(name="Ann")[1]
    ben, created = Customer.objects.update_or_create(
        name="Ben", defaults={"settings": {"theme": {"dark": True}, "n": 3}}
    )
    assert created
    ben, created = Customer.objects.update_or_create(name="Ben", defaults={"email": "b@example.org"})
    assert not created
    same(ben.settings, {"theme": {"dark": True}, "n": 3})
    orders = Order.objects.bulk_create(
        Order(customer=one, amount=Decimal(amount), placed=date(2024, month, 3))
        for one, month, amount in [(ann, 1, "10.50"), (ann, 2, "20"), (ben, 1, "7.25"), (ben, 3, "0")]
    )
    ann.waits = timedelta(days=1, minutes=3)
    ann.save()
    waiting = [Customer(name="Cas", waits=timedelta(hours=2)), Customer(name="Dia", waits=None)]
    same([one.pk is not None for one in Customer.objects.bulk_create(waiting)], [True, True])
    same(Customer.objects.get(name="Cas").waits, timedelta(hours=2))
    Customer.objects.filter(pk__in=[one.pk for one in waiting]).delete()
    again = [
        Order(customer=ann, amount=Decimal(99), placed=date(2024, 1, 3)),
        Order(customer=ann, amount=Decimal(5), placed=date(2024, 9, 9)),
    ]
    Order.objects.bulk_create(
        again, update_conflicts=True, unique_fields=["customer", "placed"], update_fields=["amount"]
    )
    same(Order.objects.get(pk=orders[0].pk).amount, 99)
    Order.objects.bulk_create(again[:1], ignore_conflicts=True)
    same(Order.objects.count(), 5)
    Order.objects.filter(pk=orders[0].pk).update(amount=F("amount") - Decimal("88.5"), discount=F("amount"))
    for order in orders:
        order.refresh_from_db()
        order.paid = order.amount > 10
    same(Order.objects.bulk_update(orders, ["paid"]), 4)
    lines = Line.objects.bulk_create(
        Line(order=orders[0], position=at, text=f"line {at}", quantity=at) for at in range(5)
    )
    same([line.pk is not None for line in lines], [True] * 5)
    same([line.total for line in Line.objects.order_by("position")], [0, 2, 4, 6, 8])
    ann.friends.add(ben)
    same(list(ben.friends.all()), [ann])


def transactions() -> None:
    with transaction.atomic():
        Customer.objects.create(name="Cid")
        try:
            with transaction.atomic():
                Customer.objects.create(name="Cid")
        except IntegrityError as error:
            assert "django_shop_customer" in str(error)
        same(Customer.objects.filter(name="Cid").count(), 1)
        with transaction.atomic():
            Customer.objects.create(name="Dot")
            transaction.set_rollback(True)
        assert not Customer.objects.filter(name="Dot").exists()
    try:
        with transaction.atomic():
            Order.objects.create(customer_id=12345, amount=1)
    except IntegrityError as error:
        assert error.__cause__.diag.constraint_name.startswith("django_shop_order_customer_id")
    else:
        raise AssertionError
    try:
        Order.objects.create(customer=Customer.objects.get(name="Cid"), amount=-1)
    except IntegrityError as error:
        same(error.__cause__.diag.constraint_name, "amount_positive")
    else:
        raise AssertionError
    with transaction.atomic():
        locked = (
            Order.objects.select_for_update().select_related("customer").filter(customer__name="Ann").order_by("placed")
        )
        for order in locked:
            order.discount += 1
            order.save(update_fields=["discount"])
        list(Order.objects.select_for_update(nowait=True, of=("self",)).all())
        list(Order.objects.select_for_update(skip_locked=True).all())
    with transaction.atomic():  # a deferred key: the line is there before its order
        order = Order(customer=Customer.objects.get(name="Cid"))
        Line.objects.create(order_id=order.pk, position=1)
        order.save()
    with connection.constraint_checks_disabled():
        pass
    connection.check_constraints()
    order.delete()
    done = []
    with transaction.atomic():
        transaction.on_commit(lambda: done.append(1))
        Customer.objects.filter(name="Cid").delete()
    same(done, [1])


def queries() -> None:
    paid = Order.objects.filter(customer=OuterRef("pk"), paid=True)
    rows = (
        Customer.objects.exclude(name__startswith="from")
        .order_by("name")
        .annotate(
            n=Count("orders"),
            spent=Coalesce(Sum("orders__amount"), Decimal(0)),
            most=Max("orders__amount"),
            has_paid=Exists(paid),
            last=Subquery(Order.objects.filter(customer=OuterRef("pk")).order_by("-placed").values("placed")[:1]),
            shown=Concat(Upper("name"), Value("!")),
        )
    )
    same(
        [(one.name, one.n, one.spent, one.most, one.has_paid, one.last, one.shown) for one in rows],
        [
            ("Ann", 3, Decimal("35.50"), Decimal("20.00"), True, date(2024, 9, 9), "ANN!"),
            ("Ben", 2, Decimal("7.25"), Decimal("7.25"), False, date(2024, 3, 3), "BEN!"),
        ],
    )
    same([one.name for one in Customer.objects.filter(Exists(paid))], ["Ann"])
    same([one.name for one in Customer.objects.filter(~Exists(paid), orders__amount__gt=1).distinct()], ["Ben"])
    monthly = (
        Order.objects.annotate(month=TruncMonth("placed"))
        .values("month")
        .annotate(n=Count("pk"), t=Avg("amount"))
        .order_by("month")
    )
    same(
        [(one["month"], one["n"]) for one in monthly],
        [
            (date(2024, 1, 1), 2),
            (date(2024, 2, 1), 1),
            (date(2024, 3, 1), 1),
            (date(2024, 9, 1), 1),
        ],
    )
    ranked = Order.objects.annotate(
        at=Window(RowNumber(), partition_by=F("customer"), order_by=F("placed").desc())
    ).filter(at=1)
    same(sorted(one.placed for one in ranked), [date(2024, 3, 3), date(2024, 9, 9)])
    size = Case(When(amount__gt=10, then=Value("big")), default=Value("small"))
    same(
        sorted(Order.objects.annotate(size=size).values_list("size", flat=True)),
        [
            "big",
            "big",
            "small",
            "small",
            "small",
        ],
    )
    same(
        Order.objects.aggregate(Sum("amount"), Count("customer", distinct=True)),
        {
            "amount__sum": Decimal("42.75"),
            "customer__count": 2,
        },
    )
    same(Customer.objects.get(waits__gt=timedelta(hours=24)).waits, timedelta(days=1, minutes=3))
    same(Order.objects.annotate(y=ExtractYear("placed")).filter(y=2024, placed__month=1, placed__week_day=4).count(), 2)
    same(
        [
            one.name
            for one in Customer.objects.filter(Q(name__icontains="N") & ~Q(name__iregex=r"^b")).exclude(
                email="m@example.org"
            )
        ],
        ["Ann"],
    )
    same(
        len(
            Customer.objects.prefetch_related(
                Prefetch("orders", Order.objects.order_by("placed").prefetch_related("lines"))
            )
        ),
        3,
    )
    both = Customer.objects.filter(name="Ann").union(Customer.objects.filter(name="Ben")).order_by("-name")
    same([one.name for one in both], ["Ben", "Ann"])
    same(Customer.objects.filter(name="Ann").intersection(Customer.objects.all()).count(), 1)
    same(
        list(Order.objects.dates("placed", "month")),
        [
            date(2024, 1, 1),
            date(2024, 2, 1),
            date(2024, 3, 1),
            date(2024, 9, 1),
        ],
    )
    same(list(Customer.objects.values_list(Lower("name"), flat=True)[1:3]), ["ben", "from a migration"])
    same(len(list(Order.objects.iterator(chunk_size=2))), 5)
    same(Customer.objects.filter(pk__in=Order.objects.filter(paid=True).values("customer")).get().name, "Ann")
    same(Customer.objects.raw("SELECT * FROM django_shop_customer WHERE name = %s", ["Ben"])[0].email, "b@example.org")
    assert "Scan" in Order.objects.filter(paid=True).explain() or Order.objects.filter(paid=True).explain()
    same(Customer.objects.in_bulk(["Ann"], field_name="name")["Ann"].email, "a@example.org")
    same(Line.objects.filter(order__customer__name="Ann").delete()[0], 5)
    same(Customer.objects.defer("settings").latest("joined").name, "Ben")


def documents_and_arrays() -> None:
    objects = Customer.objects
    same(objects.get(settings__theme__dark=True).name, "Ben")
    same(objects.get(settings__n__gte=3).name, "Ben")
    same(objects.get(settings__contains={"n": 3}).name, "Ben")
    same(objects.get(settings__has_key="theme").name, "Ben")
    same(objects.get(settings__has_any_keys=["x", "n"]).name, "Ben")
    same(objects.filter(settings__theme__isnull=True).count(), 2)
    same(objects.filter(settings={}).count(), 2)
    same(objects.filter(settings__n__in=[3, 4]).count(), 1)
    same(list(objects.exclude(settings={}).values_list("settings__theme__dark", flat=True)), [True])
    assert objects.order_by("-settings__n")[2].name == "Ben" or objects.order_by("-settings__n")[0].name
    same(objects.get(tags__contains=["good"]).name, "Ann")
    same(objects.get(tags__overlap=["good", "bad"]).name, "Ann")
    same(objects.get(tags__len=2).name, "Ann")
    same(objects.get(tags__0="new").name, "Ann")
    same(objects.get(tags__0_1=["new"]).name, "Ann")
    same(objects.filter(tags__contained_by=["new", "good", "x"]).count(), 3)
    same(
        objects.filter(name__in=["Ann", "Ben"]).aggregate(
            a=ArrayAgg("name", ordering="-name"), s=StringAgg("name", ", ", ordering="name")
        ),
        {"a": ["Ben", "Ann"], "s": "Ann, Ben"},
    )


for step in (migrations, contrib, writes, transactions, queries, documents_and_arrays):
    step()
    print(f"{step.__name__}: done")
call_command("flush", "--noinput", verbosity=0)
call_command("migrate", "django_shop", "zero", verbosity=0)
print("flush and migrate zero: done")
