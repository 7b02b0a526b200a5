"""Models as Django's users write them: keys of several kinds, JSON, arrays, constraints, relations."""

import uuid
from decimal import Decimal

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q


class Customer(models.Model):
    name = models.CharField(max_length=50, unique=True)
    email = models.EmailField(db_index=True, default="")
    joined = models.DateTimeField(auto_now_add=True)
    settings = models.JSONField(default=dict)
    tags = ArrayField(models.CharField(max_length=20), default=list)
    waits = models.DurationField(null=True)
    friends = models.ManyToManyField("self", blank=True)

    class Meta:
        ordering = ("name",)


class Order(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    customer = models.ForeignKey(Customer, on_delete=models.CASCADE, related_name="orders")
    amount = models.DecimalField(max_digits=10, decimal_places=2, default=Decimal(0))
    discount = models.DecimalField(max_digits=10, decimal_places=2, default=Decimal(0))
    placed = models.DateField(null=True)
    paid = models.BooleanField(default=False)

    class Meta:
        constraints = (
            models.CheckConstraint(condition=Q(amount__gte=0), name="amount_positive"),
            models.UniqueConstraint(fields=("customer", "placed"), name="one_a_day"),
        )
        indexes = (models.Index(fields=("paid", "placed"), name="paid_placed"),)


class Line(models.Model):
    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="lines")
    position = models.PositiveSmallIntegerField()
    text = models.TextField(blank=True)
    quantity = models.IntegerField(default=1)
    total = models.GeneratedField(expression=F("quantity") * 2, output_field=models.IntegerField(), db_persist=True)

    class Meta:
        unique_together = (("order", "position"),)
