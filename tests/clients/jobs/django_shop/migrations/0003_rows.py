from django.db import migrations


def fill(apps, editor):
    customers = apps.get_model("django_shop", "Customer").objects
    customers.create(name="from a migration", email="m@example.org")
    assert customers.filter(name__startswith="from").count() == 1


def empty(apps, editor):
    apps.get_model("django_shop", "Customer").objects.filter(name="from a migration").delete()


class Migration(migrations.Migration):
    dependencies = (("django_shop", "0002_changes"),)
    operations = (migrations.RunPython(fill, empty),)
