"""The input: Python files of the installed Django, and how their terms are counted."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path

import django

ROOT = Path(django.__file__).resolve().parent

_TERM = re.compile(r"[A-Za-z][a-z]{2,}|[A-Z]{3,}")


def packages() -> dict[str, list[str]]:
    """Package name to its files, as paths relative to Django's folder; about 900 files in all.

    A package is the first two folders of a path: ``django.db.models``, ``django.core.cache``.
    """
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        relative = path.relative_to(ROOT)
        found[".".join(("django", *relative.parent.parts[:2]))].append(relative.as_posix())
    return dict(found)


def count_terms(relative_path: str) -> Counter[str]:
    """How often each term occurs in one file; ``TestCase`` counts as ``test`` and ``case``."""
    text = (ROOT / relative_path).read_text(encoding="utf-8")
    return Counter(term.lower() for term in _TERM.findall(text))
