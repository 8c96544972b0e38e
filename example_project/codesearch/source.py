"""The input: Python files of the installed Django, and how their terms are counted."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import django

ROOT_VARIABLE = "CODESEARCH_ROOT"  # another folder to index; the demo names its working copy here

_TERM = re.compile(r"[A-Za-z][a-z]{2,}|[A-Z]{3,}")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as it was when it was read."""

    digest: str
    terms: Counter[str]


def root() -> Path:
    """The folder that is indexed."""
    return Path(os.environ.get(ROOT_VARIABLE) or Path(django.__file__).parent).resolve()


def paths() -> list[str]:
    """The Python files below the root, relative to it, sorted; about 900 of them."""
    folder = root()
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.py"))


def digests() -> Iterator[tuple[str, str]]:
    """Each path with the digest of what the file holds now."""
    for path in paths():
        yield path, digest_of((root() / path).read_bytes())


def package_of(path: str) -> str:
    """The first two folders: ``django.db.models``, ``django.core.cache``."""
    return ".".join(("django", *Path(path).parent.parts[:2]))


def read(path: str) -> SourceFile:
    """Read a file and count how often each term occurs; ``TestCase`` counts as ``test`` and ``case``."""
    data = (root() / path).read_bytes()
    words = _TERM.findall(data.decode("utf-8"))
    return SourceFile(digest=digest_of(data), terms=Counter(word.lower() for word in words))


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
