import uuid

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="Customer",
            fields=[
                ("id", models.AutoField(primary_key=True, auto_created=True, serialize=False, verbose_name="ID")),
                ("title", models.CharField(max_length=20, unique=True)),
                ("email", models.CharField(max_length=20, db_index=True)),
                ("joined", models.DateTimeField(auto_now_add=True)),
                ("settings", models.JSONField(default=dict)),
                ("legacy", models.CharField(max_length=10, db_index=True, default="")),
            ],
            options={"ordering": ("title",)},
        ),
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.UUIDField(primary_key=True, default=uuid.uuid4, serialize=False)),
                (
                    "customer",
                    models.ForeignKey(
                        "django_shop.Customer", on_delete=django.db.models.deletion.CASCADE, related_name="orders"
                    ),
                ),
                ("amount", models.IntegerField(default=0)),
                ("placed", models.DateField(null=True)),
                ("paid", models.BooleanField(default=False)),
            ],
        ),
        migrations.CreateModel(
            name="Line",
            fields=[
                ("id", models.BigAutoField(primary_key=True, auto_created=True, serialize=False, verbose_name="ID")),
                (
                    "order",
                    models.ForeignKey(
                        "django_shop.Order", on_delete=django.db.models.deletion.CASCADE, related_name="lines"
                    ),
                ),
                ("position", models.PositiveSmallIntegerField()),
                ("text", models.TextField(blank=True)),
            ],
            options={"unique_together": {("order", "position")}},
        ),
    )
