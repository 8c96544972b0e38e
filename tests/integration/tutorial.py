"""Follows a tutorial as a reader would: writes its files, runs its commands, compares its outputs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 120

_BLOCK = re.compile(
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?(?: at="(?P<at>\w+)")?\n(?P<text>.*?)^```$',
    re.M | re.S,
)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: a file to write, commands to run, or the output to expect."""

    language: str
    title: str
    at: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    for found in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        yield Block(
            language=found["language"], title=found["title"] or "", at=found["at"] or "", text=found["text"]
        )


class Tutorial:
    """A reader in an empty folder.

    Attributes:
        output: Everything that the commands have printed.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        self.output = ""
        self._last = ""

    def follow(self, block: Block) -> None:
        """Do what a block asks for; an ``AssertionError`` where the result is another one."""
        if block.language == "sh":
            self._last = "".join(self._run(line) for line in block.text.splitlines())
            self.output += self._last
        elif block.language == "text":
            assert matches(block.text, self._last), f"expected:\n{block.text}\nfound:\n{self._last}"
        elif block.title:
            self._write(block)

    def _write(self, block: Block) -> None:
        """A title names a file: it is made, or the block is added to it."""
        path = self.folder / block.title
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        text = block.text + before if block.at == "top" else f"{before}\n{block.text}"
        path.write_text(text, encoding="utf-8")

    def _run(self, line: str) -> str:
        words = shlex.split(line)
        if words[0] == "pip":
            return ""  # the package under test is installed
        if words[0] == "django-admin":
            words = ["python", "-m", "django", *words[1:]]
        assert words[0] == "python", f"a tutorial runs python, pip and django-admin, not {words[0]!r}"
        # The project's folder comes first, then the package under test.
        environment = {**self.environment, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        environment.pop("DJANGO_SETTINGS_MODULE", None)
        done = subprocess.run(
            [sys.executable, *words[1:]],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{line}\nended with {done.returncode}:\n{done.stdout}"
        return done.stdout


def matches(expected: str, found: str) -> bool:
    """Whether the lines of ``expected`` stand in ``found`` in order; ``…`` stands for anything."""
    lines = iter(found.splitlines())
    return all(
        any(_line_matches(line, candidate) for candidate in lines)
        for line in expected.splitlines()
        if line != "…"
    )


def _line_matches(expected: str, found: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, expected.split("…"))), found) is not None
