import django.db.models.deletion
from django.db import migrations, models

import django_belay.fields
from django_belay.migrations._operation import MigrateSchema


class Migration(migrations.Migration):
    initial = True
    atomic = False  # CREATE INDEX CONCURRENTLY
    dependencies = []
    operations = [
        MigrateSchema(),
        # State only: the models are unmanaged.
        migrations.CreateModel(
            name="Job",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("kind", models.TextField(verbose_name="kind")),
                ("queue", models.TextField(verbose_name="queue")),
                (
                    "state",
                    models.TextField(
                        choices=[
                            ("ready", "ready"),
                            ("running", "running"),
                            ("awaiting", "awaiting"),
                            ("held", "held"),
                            ("paused", "paused"),
                            ("succeeded", "succeeded"),
                            ("failed", "failed"),
                            ("cancelled", "cancelled"),
                        ],
                        default="ready",
                        verbose_name="state",
                    ),
                ),
                ("input", django_belay.fields.StoredJSONField(default=dict, verbose_name="input")),
                ("meta", django_belay.fields.StoredJSONField(default=dict, verbose_name="meta")),
                ("priority", models.IntegerField(default=0, verbose_name="priority")),
                ("attempt", models.IntegerField(default=0, verbose_name="attempt")),
                ("max_attempts", models.IntegerField(default=20, verbose_name="most attempts")),
                ("partition_key", models.TextField(null=True, verbose_name="partition key")),
                ("ready_at", django_belay.fields.InstantField(null=True, verbose_name="ready at")),
                ("lease_until", django_belay.fields.InstantField(null=True, verbose_name="lease until")),
                ("leased_by", models.TextField(null=True, verbose_name="leased by")),
                ("await_scope", models.TextField(null=True, verbose_name="awaited scope")),
                ("await_name", models.TextField(null=True, verbose_name="awaited signal")),
                ("workflow_id", models.TextField(null=True, verbose_name="workflow")),
                ("wf_name", models.TextField(null=True, verbose_name="name in workflow")),
                (
                    "wf_deps",
                    django_belay.fields.TextArrayField(default=list, verbose_name="workflow dependencies"),
                ),
                (
                    "wf_ignore",
                    django_belay.fields.TextArrayField(default=list, verbose_name="ignored outcomes"),
                ),
                ("cron_name", models.TextField(null=True, verbose_name="schedule")),
                ("cron_slot", django_belay.fields.InstantField(null=True, verbose_name="schedule's slot")),
                ("unique_key", models.TextField(null=True, verbose_name="unique key")),
                ("unique_mode", models.TextField(null=True, verbose_name="unique mode")),
                (
                    "parent",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="children",
                        to="belay.job",
                        verbose_name="parent",
                    ),
                ),
                (
                    "budget_usd_micros",
                    models.BigIntegerField(null=True, verbose_name="budget, micro-dollars"),
                ),
                ("budget_tokens", models.BigIntegerField(null=True, verbose_name="budget, tokens")),
                ("spent_usd_micros", models.BigIntegerField(default=0, verbose_name="spent, micro-dollars")),
                ("spent_tokens", models.BigIntegerField(default=0, verbose_name="spent, tokens")),
                ("result", models.BinaryField(null=True, verbose_name="result")),
                ("errors", django_belay.fields.StoredJSONField(default=list, verbose_name="errors")),
                (
                    "cancel_requested",
                    models.BooleanField(default=False, verbose_name="cancellation requested"),
                ),
                ("inserted_at", django_belay.fields.InstantField(verbose_name="inserted at")),
                ("started_at", django_belay.fields.InstantField(null=True, verbose_name="started at")),
                ("finished_at", django_belay.fields.InstantField(null=True, verbose_name="finished at")),
            ],
            options={
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
                "db_table": "belay_jobs",
                "ordering": ["-id"],
                "permissions": [
                    ("view_job_payload", "Can view inputs, results and step values of jobs"),
                    ("retry_job", "Can retry jobs"),
                    ("cancel_job", "Can cancel jobs"),
                    ("signal_job", "Can send signals to jobs"),
                    ("steer_job", "Can steer jobs"),
                    ("reschedule_job", "Can reschedule jobs"),
                    ("move_job", "Can move jobs to another queue or priority"),
                    ("freeze_job", "Can freeze and unfreeze jobs"),
                    ("replay_job", "Can replay jobs"),
                    ("erase_payload", "Can erase payloads of jobs"),
                ],
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Step",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "job_id", "name", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="steps",
                        to="belay.job",
                        verbose_name="job",
                    ),
                ),
                ("seq", models.IntegerField(verbose_name="number")),
                ("name", models.TextField(verbose_name="name")),
                ("value", models.BinaryField(null=True, verbose_name="value")),
                ("usd_micros", models.BigIntegerField(default=0, verbose_name="cost, micro-dollars")),
                ("tokens", models.BigIntegerField(default=0, verbose_name="tokens")),
                ("inserted_at", django_belay.fields.InstantField(null=True, verbose_name="inserted at")),
            ],
            options={
                "verbose_name": "step",
                "verbose_name_plural": "steps",
                "db_table": "belay_steps",
                "ordering": ["job_id", "seq"],
                "managed": False,
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="Event",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "job_id", "seq", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="events",
                        to="belay.job",
                        verbose_name="job",
                    ),
                ),
                ("seq", models.IntegerField(verbose_name="number")),
                ("payload", django_belay.fields.StoredJSONField(null=True, verbose_name="payload")),
                ("inserted_at", django_belay.fields.InstantField(null=True, verbose_name="inserted at")),
            ],
            options={
                "verbose_name": "event",
                "verbose_name_plural": "events",
                "db_table": "belay_events",
                "ordering": ["job_id", "seq"],
                "managed": False,
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="Signal",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "scope", "name", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("scope", models.TextField(verbose_name="scope")),
                ("name", models.TextField(verbose_name="name")),
                ("payload", django_belay.fields.StoredJSONField(null=True, verbose_name="payload")),
                ("inserted_at", django_belay.fields.InstantField(null=True, verbose_name="inserted at")),
            ],
            options={
                "verbose_name": "signal",
                "verbose_name_plural": "signals",
                "db_table": "belay_signals",
                "ordering": ["scope", "name"],
                "managed": False,
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="RateWindow",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "bucket",
                        "window_start",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("bucket", models.TextField(verbose_name="bucket")),
                ("window_start", models.BigIntegerField(verbose_name="start of the window, epoch seconds")),
                ("count", models.IntegerField(default=0, verbose_name="count")),
            ],
            options={
                "verbose_name": "rate window",
                "verbose_name_plural": "rate windows",
                "db_table": "belay_rate",
                "ordering": ["bucket", "window_start"],
                "managed": False,
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="Queue",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False, verbose_name="name")),
                ("opts", django_belay.fields.StoredJSONField(default=dict, verbose_name="options")),
                ("updated_at", django_belay.fields.InstantField(null=True, verbose_name="updated at")),
            ],
            options={
                "verbose_name": "queue",
                "verbose_name_plural": "queues",
                "db_table": "belay_queues",
                "ordering": ["name"],
                "managed": False,
                "default_permissions": ("view", "change"),
            },
        ),
        migrations.CreateModel(
            name="Cron",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False, verbose_name="name")),
                ("expression", models.TextField(verbose_name="expression")),
                ("worker", models.TextField(verbose_name="kind")),
                ("input", django_belay.fields.StoredJSONField(default=dict, verbose_name="input")),
                ("opts", django_belay.fields.StoredJSONField(default=dict, verbose_name="options")),
                ("paused", models.BooleanField(default=False, verbose_name="paused")),
                ("updated_at", django_belay.fields.InstantField(null=True, verbose_name="updated at")),
            ],
            options={
                "verbose_name": "schedule",
                "verbose_name_plural": "schedules",
                "db_table": "belay_crons",
                "ordering": ["name"],
                "permissions": [("run_cron", "Can run schedules now")],
                "managed": False,
                "default_permissions": ("view", "change"),
            },
        ),
        migrations.CreateModel(
            name="SchemaVersion",
            fields=[
                ("version", models.IntegerField(primary_key=True, serialize=False, verbose_name="version")),
                ("contract_major", models.IntegerField(default=1, verbose_name="contract")),
            ],
            options={
                "verbose_name": "schema version",
                "verbose_name_plural": "schema versions",
                "db_table": "belay_meta",
                "ordering": ["version"],
                "managed": False,
                "default_permissions": (),
            },
        ),
    ]
