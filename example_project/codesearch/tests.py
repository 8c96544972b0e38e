"""The example's own tests: ``python3 -m example_project test example_project``.

They run the jobs on PostgreSQL in the test's process; approvals, time-outs and nights need no waiting.
"""

from __future__ import annotations

import os
import tempfile
from datetime import timedelta
from pathlib import Path
from unittest import mock

from django.contrib.auth.models import Permission, User
from django.test import Client, TestCase
from django.urls import reverse

from django_belay import client, schedules
from django_belay.testing import BelayTestMixin

from . import building, source
from .jobs import APPROVAL, APPROVAL_TIMEOUT, build_index, index_package, refresh_index
from .models import IndexVersion, Posting
from .search import find, published_version, recent_versions

FILES = {
    "apps.py": "alpha beta",
    "db/models/query.py": "alpha alpha gamma",
    "db/models/sql/where.py": "gamma",
    "db/models/empty.py": "",
    "db/models/void.py": "",
}


class IndexTestCase(BelayTestMixin, TestCase):
    """A small source tree in place of Django's."""

    def setUp(self) -> None:
        super().setUp()
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(mock.patch.dict(os.environ, {source.ROOT_VARIABLE: str(self.folder)}))
        for path, text in FILES.items():
            self.write(path, text)

    def write(self, path: str, text: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text, encoding="utf-8")

    def build(self) -> IndexVersion:
        """A version that waits for approval."""
        handle = build_index.enqueue()
        self.drain(raise_failures=True)
        return IndexVersion.objects.get(job_id=handle.id)

    def answer(self, version: IndexVersion, **payload: object) -> None:
        client.signal(version.job_id, APPROVAL, payload)
        self.drain(raise_failures=True)
        version.refresh_from_db()

    def publish(self) -> IndexVersion:
        version = self.build()
        self.answer(version, approved=True, by="ann")
        return version


class BuildTests(IndexTestCase):
    def test_a_child_a_package_and_the_parent_adds_up(self) -> None:
        version = self.build()
        self.assertEnqueued(index_package, count=2)
        self.assertEnqueued(index_package, version=version.pk, package="django", files=["apps.py"])
        self.assertEqual((version.state, version.files, version.terms), ("waiting", 5, 6))
        self.assertEqual(building.count_rows(version), {"files": 5, "terms": 6})

    def test_nothing_is_found_before_somebody_approves(self) -> None:
        version = self.build()
        self.assertEqual(find("alpha"), [])
        self.answer(version, approved=True, by="ann")
        self.assertEqual((version.state, version.decided_by), ("published", "ann"))
        self.assertEqual(
            [(hit.path, hit.count) for hit in find("alpha")], [("db/models/query.py", 2), ("apps.py", 1)]
        )

    def test_a_discarded_version_leaves_the_published_one(self) -> None:
        first = self.publish()
        self.write("apps.py", "delta")
        second = self.build()
        self.answer(second, approved=False, by="bob")
        self.assertEqual((second.state, second.decided_by), ("discarded", "bob"))
        self.assertEqual(published_version(), first)

    def test_an_answer_that_is_no_approval_publishes_nothing(self) -> None:
        for payload in (True, {"approved": "yes"}, None):
            with self.subTest(payload=payload):
                version = self.build()
                client.signal(version.job_id, APPROVAL, payload)
                self.drain(raise_failures=True)
                version.refresh_from_db()
                self.assertNotEqual(version.state, "published")

    def test_a_version_that_nobody_decides_about_expires(self) -> None:
        clock = self.stop_clock()
        version = self.build()
        clock.advance(APPROVAL_TIMEOUT - timedelta(minutes=1))
        self.assertEqual(len(self.drain()), 0)
        clock.advance(timedelta(minutes=2))
        self.drain(raise_failures=True)
        version.refresh_from_db()
        self.assertEqual(version.state, "expired")
        # Too late.
        self.answer(version, approved=True, by="ann")
        self.assertEqual(version.state, "expired")

    def test_a_package_that_fails_half_way_reads_no_file_twice(self) -> None:
        reading = mock.Mock(side_effect=source.read)
        failing = mock.Mock(
            side_effect=[OSError("disk"), *[mock.DEFAULT] * 9], wraps=Posting.objects.bulk_create
        )
        with (
            mock.patch.object(source, "read", reading),
            mock.patch.object(Posting.objects, "bulk_create", failing),
        ):
            handle = build_index.enqueue()
            with self.assertLogs("django_belay.worker", "WARNING"):
                self.drain(with_scheduled=True)
        version = IndexVersion.objects.get(job_id=handle.id)
        self.assertEqual((version.state, version.files, version.terms), ("waiting", 5, 6))
        self.assertEqual(reading.call_count, len(FILES) + 1)  # the one that failed, once more
        self.assertEqual(building.count_rows(version), {"files": 5, "terms": 6})

    def test_one_build_at_a_time(self) -> None:
        version = self.build()
        self.assertEqual(build_index.enqueue().id, version.job_id)
        self.answer(version, approved=True, by="ann")
        self.assertFalse(build_index.enqueue().duplicate)


class RefreshTests(IndexTestCase):
    def refresh(self) -> dict:
        handle = refresh_index.enqueue()
        self.drain(raise_failures=True)
        return handle.result(timeout=0)

    def test_nothing_changed_builds_nothing(self) -> None:
        self.publish()
        self.assertEqual(self.refresh(), {"changes": 0, "build": None})

    def test_only_what_changed_is_read(self) -> None:
        first = self.publish()
        self.write("apps.py", "alpha beta delta")
        self.write("core/new.py", "delta")
        (self.folder / "db/models/sql/where.py").unlink()
        with mock.patch.object(source, "read", side_effect=source.read) as reading:
            answer = self.refresh()
        self.assertEqual(answer["changes"], 3)
        self.assertEqual({call.args[0] for call in reading.call_args_list}, {"apps.py", "core/new.py"})
        second = IndexVersion.objects.get(job_id=answer["build"])
        self.assertEqual((second.files, second.files_indexed, second.terms), (5, 2, 7))
        self.assertEqual(building.count_rows(second), {"files": 5, "terms": 7})
        self.assertEqual(building.count_rows(first), {"files": 5, "terms": 6})
        self.answer(second, approved=True, by="ann")
        self.assertEqual([hit.path for hit in find("delta")], ["apps.py", "core/new.py"])
        self.assertEqual([hit.path for hit in find("gamma")], ["db/models/query.py"])

    def test_a_removed_file_alone_is_a_change(self) -> None:
        self.publish()
        (self.folder / "apps.py").unlink()
        version = IndexVersion.objects.get(job_id=self.refresh()["build"])
        self.assertEqual((version.state, version.files, version.files_indexed), ("waiting", 4, 0))

    def test_the_schedule_fires_once_a_night(self) -> None:
        clock = self.stop_clock()
        crons = self.watch_crons()
        night = schedules.next_runs("nightly-refresh", count=1)[0]
        clock.set(night - timedelta(minutes=1))
        self.assertEqual(crons.fire(), [])
        clock.set(night)
        self.assertEqual(len(crons.fire()), 1)
        clock.advance(timedelta(hours=12))
        self.assertEqual(crons.fire(), [])
        self.drain(raise_failures=True)
        self.assertEqual(IndexVersion.objects.get().files, 5)


class PageTests(IndexTestCase):
    def log_in(self, *, may_approve: bool = True) -> None:
        user = User.objects.create_user("ann")
        if may_approve:
            user.user_permissions.add(Permission.objects.get(codename="approve_index"))
        self.client.force_login(user)

    def decide(self, version: IndexVersion, decision: str = "approve"):
        return self.client.post(reverse("decide", args=[version.pk]), {"decision": decision}, follow=True)

    def test_search_shows_files_and_states(self) -> None:
        self.publish()
        page = self.client.get(reverse("search"), {"q": "Alpha"})
        self.assertContains(page, "db/models/query.py")
        self.assertContains(page, "published")

    def test_nothing_is_there_yet(self) -> None:
        self.assertContains(self.client.get(reverse("search"), {"q": "alpha"}), "No index is published yet")

    def test_approve(self) -> None:
        version = self.build()
        self.log_in()
        self.assertContains(self.client.get(reverse("search")), f"Approve index {version.pk}")
        self.assertContains(self.decide(version), f"Sent: approve index {version.pk}")
        self.drain(raise_failures=True)
        version.refresh_from_db()
        self.assertEqual((version.state, version.decided_by), ("published", "ann"))
        self.assertContains(self.decide(version), "does not wait for anybody")

    def test_discard(self) -> None:
        version = self.build()
        self.log_in()
        self.decide(version, "discard")
        self.drain(raise_failures=True)
        version.refresh_from_db()
        self.assertEqual(version.state, "discarded")

    def test_who_may_not_gets_no_button_and_no_effect(self) -> None:
        version = self.build()
        self.assertContains(self.client.get(reverse("search")), "Log in to approve")
        self.assertRedirects(
            self.client.post(reverse("decide", args=[version.pk]), {"decision": "approve"}),
            f"{reverse('admin:login')}?next={reverse('decide', args=[version.pk])}",
        )
        self.log_in(may_approve=False)
        self.assertNotContains(self.client.get(reverse("search")), "<button name")
        self.assertEqual(self.decide(version).status_code, 403)
        self.assertEqual(len(self.drain()), 0)

    def test_only_a_post_with_a_token_decides(self) -> None:
        version = self.build()
        self.log_in()
        self.assertEqual(self.client.get(reverse("decide", args=[version.pk])).status_code, 405)
        self.assertEqual(self.decide(version, "perhaps").status_code, 400)
        careful = Client(enforce_csrf_checks=True)
        careful.force_login(User.objects.get(username="ann"))
        answer = careful.post(reverse("decide", args=[version.pk]), {"decision": "approve"})
        self.assertEqual(answer.status_code, 403)
        self.assertEqual(len(self.drain()), 0)

    def test_a_version_whose_job_was_cancelled_says_so(self) -> None:
        version = self.build()
        client.cancel(version.job_id, reason="no")
        self.assertEqual(recent_versions()[0].status, "stopped: its job has ended")
        self.log_in()
        self.assertNotContains(self.client.get(reverse("search")), "<button name")
        self.assertContains(self.decide(version), "does not wait for anybody: stopped")
