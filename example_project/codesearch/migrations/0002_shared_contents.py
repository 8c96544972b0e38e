"""Versions share what has not changed. The index is made anew by its jobs, so old rows are dropped."""

import django.db.models.deletion
from django.db import migrations, models

ID = models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")
STATES = [
    ("building", "building"),
    ("waiting", "waiting for approval"),
    ("published", "published"),
    ("discarded", "discarded"),
    ("expired", "expired: nobody approved it"),
]


class Migration(migrations.Migration):
    dependencies = [("codesearch", "0001_initial")]

    operations = [
        migrations.DeleteModel("Posting"),
        migrations.DeleteModel("IndexedFile"),
        migrations.DeleteModel("IndexVersion"),
        migrations.CreateModel(
            name="IndexVersion",
            fields=[
                ("id", ID),
                ("state", models.CharField(choices=STATES, default="building", max_length=20)),
                ("job_id", models.BigIntegerField(unique=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("published_at", models.DateTimeField(blank=True, null=True)),
                ("decided_by", models.CharField(blank=True, max_length=150)),
                ("files", models.PositiveIntegerField(default=0)),
                ("files_indexed", models.PositiveIntegerField(default=0)),
                ("terms", models.PositiveBigIntegerField(default=0)),
            ],
            options={"permissions": [("approve_index", "Can approve and discard versions of the index")]},
        ),
        migrations.CreateModel(
            name="Content",
            fields=[
                ("id", ID),
                ("digest", models.CharField(max_length=64, unique=True)),
                ("terms", models.PositiveIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="IndexedFile",
            fields=[
                ("id", ID),
                ("package", models.CharField(max_length=200)),
                ("path", models.CharField(max_length=500)),
                (
                    "content",
                    models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, to="codesearch.content"),
                ),
                (
                    "version",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="codesearch.indexversion"
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("version", "path"), name="one_row_a_file")]
            },
        ),
        migrations.CreateModel(
            name="Posting",
            fields=[
                ("id", ID),
                ("term", models.CharField(db_index=True, max_length=200)),
                ("count", models.PositiveIntegerField()),
                (
                    "content",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="codesearch.content"),
                ),
            ],
        ),
    ]
