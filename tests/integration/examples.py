"""Checks the code blocks of a page without running them: syntax, names, arguments, commands, settings.

A block stands for a part of somebody's project, so names of that project are unknown here. What
belongs to this package is checked: imports, what is asked of its modules, contexts and handles, the
arguments of such calls, options of ``@job`` and ``.using()``, ``BELAY``, and command lines.
"""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import django
from django.core.management import CommandError, load_command_class

import django_belay
from django_belay import conf, exceptions
from django_belay.batches import BatchHandle
from django_belay.registry import JobOptions
from django_belay.workflows import WorkflowHandle

PACKAGE = "django_belay"
MODULES = ("batches", "bulk", "client", "queues", "schedules", "workflows")
#: What a reader has to import, whichever block of the page does it.
PUBLIC = {
    *django_belay.__all__,
    *(name for name in vars(exceptions) if name[0].isupper() and name not in ("Any", "TYPE_CHECKING")),
    *MODULES,
    "drain",
    "assert_enqueued",
    "assert_not_enqueued",
    "timedelta",
    "datetime",
    "transaction",
}
HANDLES = (django_belay.JobHandle, WorkflowHandle, BatchHandle)
CONTEXTS = (django_belay.JobContext, django_belay.AsyncJobContext, django_belay.ChunkContext)
JOB_OPTIONS = {*JobOptions.__slots__, "kind", "aliases"}

_BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    line: int
    text: str


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, each with the line that its text begins at."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        yield Block(found[1], text.count("\n", 0, found.start(2)) + 1, found[2])


def faults(page: Path) -> list[str]:
    """What is wrong with the blocks of a page, each with its line."""
    checked = Page()
    for block in blocks(page):
        if block.language == "python":
            checked.read_python(block)
        elif block.language in ("console", "sh"):
            checked.read_commands(block)
    return [f"{page.name}:{line}: {fault}" for line, fault in sorted(checked.all_faults())]


@dataclass(slots=True)
class Page:
    """What the blocks read so far have imported, used and got wrong."""

    imported: dict[str, Any] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    found: list[tuple[int, str]] = field(default_factory=list)

    def all_faults(self) -> list[tuple[int, str]]:
        missing = [
            (line, f"{name} is not imported in any block of the page")
            for name, line in self.used.items()
            if name in PUBLIC | sys.stdlib_module_names and name not in self.imported
        ]
        return [*self.found, *missing]

    # -- Python --------------------------------------------------------------------------

    def read_python(self, block: Block) -> None:
        try:
            tree = compile(
                block.text,
                "block",
                "exec",
                flags=ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
                dont_inherit=True,
            )
            # What parses alone may still not compile: a return outside of a function.
            compile(tree, "block", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        except SyntaxError as error:
            self.found.append((block.line + (error.lineno or 1) - 1, f"does not compile: {error.msg}"))
            return
        ast.increment_lineno(tree, block.line - 1)
        bound = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        bound |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        for node in ast.walk(tree):
            self._read_import(node)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in bound:
                self.used.setdefault(node.id, node.lineno)
            elif isinstance(node, ast.Attribute):
                self._check_attribute(node)
            elif isinstance(node, ast.Call):
                self._check_call(node)
            elif isinstance(node, ast.Assign):
                self._check_settings(node)

    def _read_import(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self.imported[alias.asname or alias.name.partition(".")[0]] = None
        if not isinstance(node, ast.ImportFrom):
            return
        ours = (node.module or "").split(".")[0] == PACKAGE
        for alias in node.names:
            found = _import(node.module or "", alias.name) if ours else None
            if ours and found is None and not _needs_newer_django(node.module or ""):
                self.found.append((node.lineno, f"{node.module} has no {alias.name}"))
            self.imported[alias.asname or alias.name] = found

    def _owners(self, value: ast.expr) -> tuple[Any, ...]:
        """What a name of ours may stand for; nothing for names of the reader's project."""
        if not isinstance(value, ast.Name):
            return ()
        if value.id in ("ctx", "context"):
            return CONTEXTS
        if value.id == "handle":
            return HANDLES
        if value.id == PACKAGE:
            return (django_belay,)
        return (self.imported[value.id],) if inspect.ismodule(self.imported.get(value.id)) else ()

    def _check_attribute(self, node: ast.Attribute) -> None:
        owners = self._owners(node.value)
        if owners and not any(_has(owner, node.attr) for owner in owners):
            self.found.append((node.lineno, f"{ast.unparse(node)}: there is no {node.attr}"))

    def _check_call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute):
            found = [getattr(owner, node.func.attr, None) for owner in self._owners(node.func.value)]
            own = isinstance(node.func.value, ast.Name) and not inspect.ismodule(
                self.imported.get(node.func.value.id)
            )
            functions = [one for one in found if callable(one)]
            self._check_arguments(node, functions, has_self=own and node.func.value.id != PACKAGE)  # type: ignore[attr-defined]
            if node.func.attr == "using":
                self._check_options(node)
        elif isinstance(node.func, ast.Name):
            function = self.imported.get(node.func.id)
            if function is django_belay.job:
                self._check_options(node)
            elif callable(function):
                self._check_arguments(node, [function], has_self=False)

    def _check_options(self, node: ast.Call) -> None:
        for keyword in node.keywords:
            if keyword.arg is not None and keyword.arg not in JOB_OPTIONS:
                self.found.append((node.lineno, f"{keyword.arg} is no option of a job"))

    def _check_arguments(self, node: ast.Call, functions: list[Any], *, has_self: bool) -> None:
        """Any of the functions must take the call; with ``*`` or ``…`` nothing can be said."""
        spread = [a for a in node.args if isinstance(a, ast.Starred) or _is_ellipsis(a)]
        if not functions or spread or any(keyword.arg is None for keyword in node.keywords):
            return
        positional = [None] * (len(node.args) + has_self)
        named = {keyword.arg: None for keyword in node.keywords if keyword.arg is not None}
        why = ""
        for function in functions:
            try:
                inspect.signature(function).bind(*positional, **named)
            except TypeError as error:
                why = str(error)
            except ValueError:
                return  # no signature to be had
            else:
                return
        self.found.append((node.lineno, f"{ast.unparse(node)[:80]}: {why}"))

    def _check_settings(self, node: ast.Assign) -> None:
        if [ast.unparse(target) for target in node.targets] != ["BELAY"]:
            return
        try:
            value = ast.literal_eval(node.value)
        except ValueError:
            return  # computed: os.environ and the like
        for problem in conf.read(value)[1]:
            self.found.append((node.lineno, f"BELAY: {problem}"))

    # -- command lines -------------------------------------------------------------------

    def read_commands(self, block: Block) -> None:
        joined = re.sub(r"\\\n\s*", " ", block.text)
        for line in joined.splitlines():
            command = line.removeprefix("$ ") if block.language == "console" else line
            if block.language == "console" and command == line:
                continue  # what the command prints
            self._check_command(block, command)

    def _check_command(self, block: Block, line: str) -> None:
        for part in re.split(r"\s\|\s", line):
            words = shlex.split(part, comments=True)
            at = next((i for i, word in enumerate(words) if word.endswith("manage.py")), None)
            if at is None or not words[at + 1].startswith("belay_"):
                continue
            # xargs puts the last argument there.
            arguments = [*words[at + 2 :], *(["1"] if words[0] == "xargs" else [])]
            try:
                load_command_class(PACKAGE, words[at + 1]).create_parser(
                    "manage.py", words[at + 1]
                ).parse_args(arguments)
            except (CommandError, ModuleNotFoundError) as error:
                self.found.append((block.line, f"{part.strip()}: {error}"))


def _import(module: str, name: str) -> Any:
    try:
        found = import_module(module)
        return getattr(found, name, None) or import_module(f"{module}.{name}")
    except ImportError:
        return None


def _needs_newer_django(module: str) -> bool:
    return module.endswith("tasks_backend") and django.VERSION < (6, 0)


def _has(owner: Any, name: str) -> bool:
    return hasattr(owner, name) or name in getattr(owner, "__annotations__", {})


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...
