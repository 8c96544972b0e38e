import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="IndexVersion",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("published_at", models.DateTimeField(blank=True, null=True)),
                ("packages", models.PositiveIntegerField()),
                ("packages_done", models.PositiveIntegerField(default=0)),
                ("files", models.PositiveIntegerField(default=0)),
                ("terms", models.PositiveBigIntegerField(default=0)),
            ],
        ),
        migrations.CreateModel(
            name="IndexedFile",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("package", models.CharField(max_length=200)),
                ("path", models.CharField(max_length=500)),
                ("terms", models.PositiveIntegerField()),
                (
                    "version",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="codesearch.indexversion"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Posting",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("term", models.CharField(db_index=True, max_length=200)),
                ("count", models.PositiveIntegerField()),
                (
                    "file",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="codesearch.indexedfile"
                    ),
                ),
            ],
        ),
        migrations.AddConstraint(
            model_name="indexedfile",
            constraint=models.UniqueConstraint(fields=("version", "path"), name="one_row_a_file"),
        ),
    ]
