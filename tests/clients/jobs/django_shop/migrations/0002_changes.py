from decimal import Decimal

import django.contrib.postgres.fields
from django.db import migrations, models
from django.db.models import F, Q


class Migration(migrations.Migration):
    dependencies = (("django_shop", "0001_initial"),)
    operations = (
        migrations.RenameField("Customer", "title", "name"),
        migrations.AlterModelOptions("Customer", {"ordering": ("name",)}),
        migrations.AlterField("Customer", "name", models.CharField(max_length=50, unique=True)),
        migrations.AlterField("Customer", "email", models.EmailField(db_index=True, default="")),
        migrations.AlterField(
            "Customer",
            "id",
            models.BigAutoField(primary_key=True, auto_created=True, serialize=False, verbose_name="ID"),
        ),
        migrations.RemoveField("Customer", "legacy"),
        migrations.AddField(
            "Customer", "tags", django.contrib.postgres.fields.ArrayField(models.CharField(max_length=20), default=list)
        ),
        migrations.AddField("Customer", "friends", models.ManyToManyField("django_shop.Customer", blank=True)),
        migrations.AlterField(
            "Order", "amount", models.DecimalField(max_digits=10, decimal_places=2, default=Decimal(0))
        ),
        migrations.AddField(
            "Order", "discount", models.DecimalField(max_digits=10, decimal_places=2, default=Decimal(0))
        ),
        migrations.AddField("Customer", "waits", models.DurationField(null=True)),
        migrations.AddIndex("Order", models.Index(fields=("paid", "placed"), name="paid_before")),
        migrations.RenameIndex("Order", new_name="paid_placed", old_name="paid_before"),
        migrations.AddConstraint("Order", models.CheckConstraint(condition=Q(amount__gte=0), name="amount_positive")),
        migrations.AddConstraint("Order", models.UniqueConstraint(fields=("customer", "placed"), name="one_a_day")),
        migrations.AddField("Line", "quantity", models.IntegerField(default=1)),
        migrations.AddField(
            "Line",
            "total",
            models.GeneratedField(expression=F("quantity") * 2, output_field=models.IntegerField(), db_persist=True),
        ),
    )
