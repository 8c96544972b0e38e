from django.db import migrations

from django_belay.migrations._operation import MigrateSchema


class Migration(migrations.Migration):
    initial = True
    atomic = False  # CREATE INDEX CONCURRENTLY
    dependencies = []
    operations = [MigrateSchema()]
