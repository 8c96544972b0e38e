# ruff: noqa: DJ001 - which columns are NULL is the wire contract's decision
"""The wire tables as read-only models; what changes a row goes through the client.

The models are unmanaged: ``belay_migrate`` and ``migrate`` make the tables (§3).
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar, NoReturn

from django.db import models
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from django_belay import _control as control
from django_belay import conf
from django_belay.contract import envelope
from django_belay.contract.job import JSON
from django_belay.contract.money import to_dollars
from django_belay.contract.names import is_reserved
from django_belay.contract.state import INCOMPLETE, TERMINAL
from django_belay.deferred import Deferred
from django_belay.exceptions import ReadOnly
from django_belay.fields import EARLIEST, LATEST, InstantField, StoredJSONField, TextArrayField
from django_belay.handles import JobHandle
from django_belay.storage.base import Controlled


class ReadOnlyQuerySet(models.QuerySet[Any]):
    """Reads; everything that would write raises and names the client's call."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise _refusal(self.model)

    create = get_or_create = update_or_create = update = delete = _refuse
    bulk_create = bulk_update = _update = _raw_delete = _insert = _refuse
    acreate = aget_or_create = aupdate_or_create = aupdate = adelete = _refuse
    abulk_create = abulk_update = _refuse

    _refuse.alters_data = True  # type: ignore[attr-defined]

    def dates(self, field_name: str, *args: Any, **kwargs: Any) -> Any:
        """As Django's, of the instants that Python can hold."""
        return super(ReadOnlyQuerySet, self._dated(field_name)).dates(field_name, *args, **kwargs)

    def datetimes(self, field_name: str, *args: Any, **kwargs: Any) -> Any:
        """As Django's, of the instants that Python can hold."""
        return super(ReadOnlyQuerySet, self._dated(field_name)).datetimes(field_name, *args, **kwargs)

    def _dated(self, field_name: str) -> ReadOnlyQuerySet:
        return self.filter(**{f"{field_name}__range": (EARLIEST, LATEST)})


class ReadOnlyModel(models.Model):
    """A row of a wire table."""

    write_instead: ClassVar[str] = "django_belay.client"

    objects: ClassVar[models.Manager[Any]] = models.Manager.from_queryset(ReadOnlyQuerySet)()

    class Meta:
        abstract = True

    def save(self, *_: Any, **__: Any) -> NoReturn:
        """Raises ``ReadOnly``."""
        raise _refusal(type(self))

    save_base = asave = delete = adelete = save


def _refusal(model: type[Any]) -> ReadOnly:
    return ReadOnly(
        f"{model.__name__} rows are read-only here: other processes rely on how they change. "
        f"Use {model.write_instead}"
    )


class JobState(models.TextChoices):
    """States of a job (§4), labelled for display."""

    READY = "ready", pgettext_lazy("job state", "ready")
    RUNNING = "running", pgettext_lazy("job state", "running")
    AWAITING = "awaiting", pgettext_lazy("job state", "awaiting")
    HELD = "held", pgettext_lazy("job state", "held")
    PAUSED = "paused", pgettext_lazy("job state", "paused")
    SUCCEEDED = "succeeded", pgettext_lazy("job state", "succeeded")
    FAILED = "failed", pgettext_lazy("job state", "failed")
    CANCELLED = "cancelled", pgettext_lazy("job state", "cancelled")


class JobQuerySet(ReadOnlyQuerySet):
    """The sets of jobs that an operator asks for; each narrows the one before."""

    def ready(self, now: datetime | None = None) -> JobQuerySet:
        """Claimable now."""
        due = models.Q(ready_at__isnull=True) | models.Q(ready_at__lte=now or _now())
        return self.filter(due, state="ready")

    def scheduled(self, now: datetime | None = None) -> JobQuerySet:
        """Ready, but not before a later instant: scheduled, backing off or snoozing."""
        return self.filter(state="ready", ready_at__gt=now or _now())

    def running(self) -> JobQuerySet:
        """Under a lease."""
        return self.filter(state="running")

    def awaiting(self) -> JobQuerySet:
        """Parked on a signal."""
        return self.filter(state="awaiting")

    def held(self) -> JobQuerySet:
        """Waiting for other jobs of their workflow."""
        return self.filter(state="held")

    def paused(self) -> JobQuerySet:
        """Frozen by an operator."""
        return self.filter(state="paused")

    def succeeded(self) -> JobQuerySet:
        """Ended well."""
        return self.filter(state="succeeded")

    def failed(self) -> JobQuerySet:
        """Ended as failed."""
        return self.filter(state="failed")

    def cancelled(self) -> JobQuerySet:
        """Ended as cancelled."""
        return self.filter(state="cancelled")

    def incomplete(self) -> JobQuerySet:
        """Not ended."""
        return self.filter(state__in=sorted(INCOMPLETE))

    def finished(self) -> JobQuerySet:
        """Ended, one way or another."""
        return self.filter(state__in=sorted(TERMINAL))

    def for_kind(self, *kinds: Any) -> JobQuerySet:
        """Of these kinds; job functions are taken for their kind."""
        return self.filter(kind__in=[getattr(kind, "kind", kind) for kind in kinds])

    def for_queue(self, *queues: str) -> JobQuerySet:
        """In these queues."""
        return self.filter(queue__in=queues)

    def in_workflow(self, workflow_id: str) -> JobQuerySet:
        """Members of a workflow."""
        return self.filter(workflow_id=workflow_id)

    def children_of(self, parent_id: int) -> JobQuerySet:
        """What a job spawned."""
        return self.filter(parent_id=parent_id)

    def cancel_requested(self) -> JobQuerySet:
        """Running jobs that were asked to stop."""
        return self.running().filter(cancel_requested=True)


def _now() -> datetime:
    return conf.clock().now()


class Job(ReadOnlyModel):
    """A row of ``belay_jobs``."""

    write_instead = "@job functions' enqueue(), this row's retry(), cancel(), signal() and steer(), or django_belay.client"

    id = models.BigAutoField(primary_key=True)
    kind = models.TextField(_("kind"))
    queue = models.TextField(_("queue"))
    state = models.TextField(_("state"), choices=JobState.choices, default=JobState.READY)
    input = StoredJSONField(_("input"), default=dict)
    meta = StoredJSONField(_("meta"), default=dict)
    priority = models.IntegerField(_("priority"), default=0)
    attempt = models.IntegerField(_("attempt"), default=0)
    max_attempts = models.IntegerField(_("most attempts"), default=20)
    partition_key = models.TextField(_("partition key"), null=True)
    ready_at = InstantField(_("ready at"), null=True)
    lease_until = InstantField(_("lease until"), null=True)
    leased_by = models.TextField(_("leased by"), null=True)
    await_scope = models.TextField(_("awaited scope"), null=True)
    await_name = models.TextField(_("awaited signal"), null=True)
    workflow_id = models.TextField(_("workflow"), null=True)
    wf_name = models.TextField(_("name in workflow"), null=True)
    wf_deps = TextArrayField(_("workflow dependencies"), default=list)
    wf_ignore = TextArrayField(_("ignored outcomes"), default=list)
    cron_name = models.TextField(_("schedule"), null=True)
    cron_slot = InstantField(_("schedule's slot"), null=True)
    unique_key = models.TextField(_("unique key"), null=True)
    unique_mode = models.TextField(_("unique mode"), null=True)
    parent = models.ForeignKey(
        "self",
        models.DO_NOTHING,
        verbose_name=_("parent"),
        null=True,
        db_constraint=False,
        db_index=False,
        related_name="children",
    )
    budget_usd_micros = models.BigIntegerField(_("budget, micro-dollars"), null=True)
    budget_tokens = models.BigIntegerField(_("budget, tokens"), null=True)
    spent_usd_micros = models.BigIntegerField(_("spent, micro-dollars"), default=0)
    spent_tokens = models.BigIntegerField(_("spent, tokens"), default=0)
    result = models.BinaryField(_("result"), null=True)
    errors = StoredJSONField(_("errors"), default=list)
    cancel_requested = models.BooleanField(_("cancellation requested"), default=False)
    inserted_at = InstantField(_("inserted at"))
    started_at = InstantField(_("started at"), null=True)
    finished_at = InstantField(_("finished at"), null=True)

    objects: ClassVar[models.Manager[Job]] = models.Manager.from_queryset(JobQuerySet)()

    class Meta:
        managed = False
        db_table = "belay_jobs"
        ordering = ["-id"]
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        default_permissions = ("view",)
        permissions = [
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
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"

    @property
    def handle(self) -> JobHandle:
        """The client's handle of this job."""
        return JobHandle(self.pk, state=self.state)  # type: ignore[arg-type]

    @property
    def decoded_result(self) -> JSON:
        """The result as JSON; ``Opaque`` where it has no JSON view."""
        return envelope.decode_or_opaque(self.result)

    @property
    def is_finished(self) -> bool:
        """Whether the job has ended."""
        return self.state in TERMINAL

    @property
    def budget_usd(self) -> Decimal | None:
        """The budget in dollars."""
        return None if self.budget_usd_micros is None else to_dollars(self.budget_usd_micros)

    @property
    def spent_usd(self) -> Decimal:
        """What the steps have cost, in dollars."""
        return to_dollars(self.spent_usd_micros)

    def retry(self, *, join: bool = False) -> Controlled | Deferred[Controlled]:
        """Run a failed or cancelled job again; see :func:`django_belay.client.retry`."""
        return control.retry(self.pk, join=join)

    def cancel(
        self, reason: str = "", *, tree: bool = False, join: bool = False
    ) -> Controlled | Deferred[Controlled]:
        """Cancel the job; see :func:`django_belay.client.cancel`."""
        return control.cancel(self.pk, reason=reason, tree=tree, join=join)

    def signal(
        self, name: str, payload: JSON = None, *, join: bool = False
    ) -> list[int] | Deferred[list[int]]:
        """Put a signal into the job's inbox; see :func:`django_belay.client.signal`."""
        return control.signal(self.pk, name, payload, join=join)

    def steer(self, payload: JSON, *, join: bool = False) -> list[int] | Deferred[list[int]]:
        """Give the job guidance; see :func:`django_belay.client.steer`."""
        return control.steer(self.pk, payload, join=join)

    # Templates must not call these.
    retry.alters_data = True  # type: ignore[attr-defined]
    cancel.alters_data = True  # type: ignore[attr-defined]
    signal.alters_data = True  # type: ignore[attr-defined]
    steer.alters_data = True  # type: ignore[attr-defined]


class Step(ReadOnlyModel):
    """A row of ``belay_steps``: a journaled step of a job."""

    write_instead = "ctx.step() in the job"

    pk = models.CompositePrimaryKey("job_id", "name")
    job = models.ForeignKey(
        Job,
        models.DO_NOTHING,
        verbose_name=_("job"),
        db_constraint=False,
        db_index=False,
        related_name="steps",
    )
    seq = models.IntegerField(_("number"))
    name = models.TextField(_("name"))
    value = models.BinaryField(_("value"), null=True)
    usd_micros = models.BigIntegerField(_("cost, micro-dollars"), default=0)
    tokens = models.BigIntegerField(_("tokens"), default=0)
    inserted_at = InstantField(_("inserted at"), null=True)

    class Meta:
        managed = False
        db_table = "belay_steps"
        ordering = ["job_id", "seq"]
        verbose_name = _("step")
        verbose_name_plural = _("steps")
        default_permissions = ()

    def __str__(self) -> str:
        return self.name

    @property
    def decoded_value(self) -> JSON:
        """The value as JSON; ``Opaque`` where it has no JSON view."""
        return envelope.decode_or_opaque(self.value)

    @property
    def usd(self) -> Decimal:
        """The cost in dollars."""
        return to_dollars(self.usd_micros)

    @property
    def is_reserved(self) -> bool:
        """Whether the step is an SDK's own."""
        return is_reserved(self.name)


class Event(ReadOnlyModel):
    """A row of ``belay_events``: an entry of a job's stream."""

    write_instead = "ctx.emit() in the job"

    pk = models.CompositePrimaryKey("job_id", "seq")
    job = models.ForeignKey(
        Job,
        models.DO_NOTHING,
        verbose_name=_("job"),
        db_constraint=False,
        db_index=False,
        related_name="events",
    )
    seq = models.IntegerField(_("number"))
    payload = StoredJSONField(_("payload"), null=True)
    inserted_at = InstantField(_("inserted at"), null=True)

    class Meta:
        managed = False
        db_table = "belay_events"
        ordering = ["job_id", "seq"]
        verbose_name = _("event")
        verbose_name_plural = _("events")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.job_id}/{self.seq}"


class Signal(ReadOnlyModel):
    """A row of ``belay_signals``: the latest payload of a name in a scope."""

    write_instead = "django_belay.client.signal()"

    pk = models.CompositePrimaryKey("scope", "name")
    scope = models.TextField(_("scope"))
    name = models.TextField(_("name"))
    payload = StoredJSONField(_("payload"), null=True)
    inserted_at = InstantField(_("inserted at"), null=True)

    class Meta:
        managed = False
        db_table = "belay_signals"
        ordering = ["scope", "name"]
        verbose_name = _("signal")
        verbose_name_plural = _("signals")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.scope} {self.name}"


class RateWindow(ReadOnlyModel):
    """A row of ``belay_rate``: what a bucket admitted in one window."""

    write_instead = "ctx.debit() in the job"

    pk = models.CompositePrimaryKey("bucket", "window_start")
    bucket = models.TextField(_("bucket"))
    window_start = models.BigIntegerField(_("start of the window, epoch seconds"))
    count = models.IntegerField(_("count"), default=0)

    class Meta:
        managed = False
        db_table = "belay_rate"
        ordering = ["bucket", "window_start"]
        verbose_name = _("rate window")
        verbose_name_plural = _("rate windows")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.bucket}@{self.window_start}"


class Queue(ReadOnlyModel):
    """A row of ``belay_queues``: a queue's options at run time, over the settings."""

    write_instead = 'BELAY["QUEUES"], or django_belay.queues'

    name = models.TextField(_("name"), primary_key=True)
    opts = StoredJSONField(_("options"), default=dict)
    updated_at = InstantField(_("updated at"), null=True)

    class Meta:
        managed = False
        db_table = "belay_queues"
        ordering = ["name"]
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        default_permissions = ("view", "change")

    def __str__(self) -> str:
        return self.name


class Cron(ReadOnlyModel):
    """A row of ``belay_crons``: a schedule at run time, over the settings."""

    write_instead = 'BELAY["CRONS"], or django_belay.schedules'

    name = models.TextField(_("name"), primary_key=True)
    expression = models.TextField(_("expression"))
    worker = models.TextField(_("kind"))
    input = StoredJSONField(_("input"), default=dict)
    opts = StoredJSONField(_("options"), default=dict)
    paused = models.BooleanField(_("paused"), default=False)
    updated_at = InstantField(_("updated at"), null=True)

    class Meta:
        managed = False
        db_table = "belay_crons"
        ordering = ["name"]
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        default_permissions = ("view", "change")
        permissions = [("run_cron", "Can run schedules now")]

    def __str__(self) -> str:
        return self.name


class SchemaVersion(ReadOnlyModel):
    """A row of ``belay_meta``: a wire migration that was applied."""

    write_instead = "manage.py belay_migrate"

    version = models.IntegerField(_("version"), primary_key=True)
    contract_major = models.IntegerField(_("contract"), default=1)

    class Meta:
        managed = False
        db_table = "belay_meta"
        ordering = ["version"]
        verbose_name = _("schema version")
        verbose_name_plural = _("schema versions")
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.version)
