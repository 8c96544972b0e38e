"""In CI nothing is skipped because a package is missing: the test extra has installed them all."""

from __future__ import annotations

import importlib.util
import os

import django
import pytest

TASKS = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"


@pytest.mark.skipif(not os.environ.get("CI"), reason="a plain clone may lack optional packages; CI may not")
@pytest.mark.parametrize("name", ["atheris", "cryptography", "testcontainers", TASKS])
def test_what_some_tests_need_is_installed(name: str) -> None:
    assert importlib.util.find_spec(name) is not None, f"{name} is missing: its tests were skipped"
