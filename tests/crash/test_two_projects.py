"""Two Django projects that name one directory: the second joins the first one's owner."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from django_belay.storage.journal.serving.place import Place

from .owners import ROOT, owner_of
from .test_owners import until

SETTINGS = """
from django_belay.databases import with_belay_index
SECRET_KEY = "of {name}"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django_belay"]
DATABASE_ROUTERS = ["django_belay.routers.BelayRouter"]
DATABASES = with_belay_index(
    {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": {database!r}}}}}, {directory!r}
)
BELAY = {{
    "STORAGE": {{
        "BACKEND": "django_belay.storage.journal",
        "OPTIONS": {{"directory": {directory!r}, "durability": "write", "validated_filesystem": True}},
    }},
}}
"""
ENQUEUE = """
import json, os, sys
import django
django.setup()
from django_belay import enqueue_job, list_jobs
mine = [enqueue_job("kind-of-" + os.environ["DJANGO_SETTINGS_MODULE"], {"n": n}).id for n in range(20)]
print(json.dumps([mine, sorted(handle.id for handle in list_jobs(limit=100))]))
"""


class Projects:
    """Settings of two projects, with databases of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.place = Place(folder / "belay")
        for name in ("first", "second"):
            (folder / f"{name}.py").write_text(
                SETTINGS.format(
                    name=name, database=str(folder / f"{name}.sqlite3"), directory=str(self.place.directory)
                )
            )

    def begin(self, name: str) -> subprocess.Popen[str]:
        """A process of a project that enqueues twenty jobs and says their ids and what it sees."""
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": name,
            "PYTHONPATH": os.pathsep.join([str(self._folder), str(ROOT)]),
        }
        return subprocess.Popen(
            [sys.executable, "-c", ENQUEUE], cwd=self._folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip


@pytest.fixture
def projects(tmp_path: Path) -> Iterator[Projects]:
    made = Projects(tmp_path)
    yield made
    with suppress(OSError):
        pid = owner_of(made.place)
        os.kill(pid, 15)
        until(lambda: not made.place.has_owner())


def told(process: subprocess.Popen[str]) -> tuple[list[int], list[int]]:
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    mine, seen = json.loads(out)
    return mine, seen


def test_two_projects_on_one_directory_share_one_owner_and_its_store(projects: Projects) -> None:
    both = [projects.begin("first"), projects.begin("second")]  # one of them starts the owner
    ids = [job_id for process in both for job_id in told(process)[0]]
    assert len(set(ids)) == 40
    owner = owner_of(projects.place)
    mine, seen = told(projects.begin("second"))
    assert seen == sorted([*ids, *mine])
    assert owner_of(projects.place) == owner
    assert projects.place.log.read_text().count("owns the journal") <= 1
