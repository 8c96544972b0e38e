"""The admin's pages: to look at, payloads by permission."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_belay.contract.outcome import Succeeded
from django_belay.storage.base import CronRow
from tests.app import jobs
from tests.integration.worker import run, storage

pytestmark = pytest.mark.django_db


@pytest.fixture
def viewer(client: Client) -> Client:
    """Somebody who may look at jobs, not at payloads."""
    user = User.objects.create_user("viewer", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_job"))
    client.force_login(user)
    return client


def test_jobs_are_listed_and_found_by_id_and_kind(viewer: Client) -> None:
    job = jobs.echo.enqueue("a payload to hide")
    listing = reverse("admin:belay_job_changelist")
    for query in ("", f"?q={job.id}", "?q=belay_testapp.echo"):
        assert b"belay_testapp.echo" in viewer.get(listing + query).content
    assert b"belay_testapp.echo" not in viewer.get(listing + "?q=belay_testapp.ech").content


def test_payloads_need_their_permission(viewer: Client, admin_client: Client) -> None:
    job = jobs.echo.enqueue("a payload to hide")
    run(Succeeded(b'"<b>bold</b>"'))
    page = reverse("admin:belay_job_change", args=[job.id])
    hidden, shown = viewer.get(page).content.decode(), admin_client.get(page).content.decode()
    assert "a payload to hide" not in hidden
    assert "bold" not in hidden
    assert "a payload to hide" in shown
    assert "&lt;b&gt;bold" in shown


def test_nothing_can_be_changed(admin_client: Client) -> None:
    job = jobs.echo.enqueue(1)
    assert (
        admin_client.post(reverse("admin:belay_job_change", args=[job.id]), {"state": "failed"}).status_code
        == 403
    )
    assert (
        admin_client.post(reverse("admin:belay_job_delete", args=[job.id]), {"post": "yes"}).status_code
        == 403
    )
    assert admin_client.get(reverse("admin:belay_job_add")).status_code == 403
    assert job.refresh().state == "ready"


@pytest.mark.parametrize("name", ["queue", "cron"])
def test_runtime_rows_have_pages(admin_client: Client, name: str) -> None:
    now = timezone.now()
    storage().put_queue("ai", {}, now=now)
    cron = CronRow(name="ai", expression="@daily", kind="x", input={}, opts={})
    storage().put_cron(cron, now=now)
    assert admin_client.get(reverse(f"admin:belay_{name}_changelist")).status_code == 200
    assert admin_client.get(reverse(f"admin:belay_{name}_change", args=["ai"])).status_code == 200
