"""What a disk may hold after a power cut, rebuilt from the steps a store took.

A run is recorded once; then the directory is rebuilt as it may stand after any of its steps:

``kill``    the process died, the system lived: everything done is there;
``cut``     nothing that was not synced survived, neither bytes nor names;
``torn``    names survived, and half of the bytes that were not synced;
``zeros``   names and sizes survived, bytes that were not synced read as zero.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from django_belay.storage.journal.files.fail import Step

Variant: TypeAlias = Literal["kill", "cut", "torn", "zeros"]
VARIANTS: tuple[Variant, ...] = ("kill", "cut", "torn", "zeros")


@dataclass(eq=False)
class FileNode:
    now: bytes = b""
    synced: bytes = b""

    def content(self, variant: Variant) -> bytes:
        if variant == "kill":
            return self.now
        if variant == "cut":
            return self.synced
        if not self.now.startswith(self.synced):
            return self.now
        fresh = len(self.now) - len(self.synced)
        if variant == "torn":
            return self.now[: len(self.synced) + fresh // 2]
        return self.synced + bytes(fresh)


@dataclass(eq=False)
class FolderNode:
    now: dict[str, FileNode | FolderNode] = field(default_factory=dict)
    synced: dict[str, FileNode | FolderNode] = field(default_factory=dict)


class Recorder:
    """Notes every step below ``root``; ``stop_before`` raises at a chosen step instead."""

    def __init__(self, error: BaseException | None = None, at: int = -1) -> None:
        self.steps: list[Step] = []
        self.points: list[str] = []
        self._error = error
        self._at = at

    def before(self, name: str) -> None:
        self.points.append(name)
        if self._error is not None and len(self.points) - 1 == self._at:
            raise self._error

    def after(self, step: Step) -> None:
        self.steps.append(step)


class Disk:
    """A model of the directory ``root``, fed with steps."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.top = _load(Path(root)) if os.path.isdir(root) else FolderNode()
        # A directory that is renamed while it is open goes on reporting the path it was opened by.
        self._moved: dict[str, str] = {}

    def feed(self, step: Step) -> None:
        if not step.path.startswith(self.root):
            return
        parent, name = self._locate(step.path)
        if step.action == "create":
            parent.now[name] = FileNode()
        elif step.action == "mkdir":
            parent.now[name] = FolderNode()
        elif step.action == "write":
            node = parent.now[name]
            assert isinstance(node, FileNode)
            node.now = node.now[: step.offset] + step.data
        elif step.action == "fsync":
            node = parent.now[name]
            assert isinstance(node, FileNode)
            node.synced = node.now
        elif step.action == "fsync_dir":
            folder = self._folder(step.path)
            folder.synced = dict(folder.now)
        elif step.action in ("rename", "replace"):
            target, new = self._locate(step.target)
            target.now[new] = parent.now.pop(name)
            self._moved[step.path] = step.target
        else:
            del parent.now[name]

    def write_to(self, destination: Path, variant: Variant) -> None:
        _store(self.top, destination, variant)

    def _real(self, path: str) -> str:
        for old, new in self._moved.items():
            if path == old or path.startswith(old + "/"):
                path = new + path[len(old) :]
        return path

    def _locate(self, path: str) -> tuple[FolderNode, str]:
        path = self._real(path)
        head, name = os.path.split(path)
        return self._folder(head), name

    def _folder(self, path: str) -> FolderNode:
        node: FileNode | FolderNode = self.top
        for part in self._real(path)[len(self.root) :].split("/"):
            if part:
                assert isinstance(node, FolderNode)
                node = node.now[part]
        assert isinstance(node, FolderNode)
        return node


def _load(path: Path) -> FolderNode:
    folder = FolderNode()
    for entry in path.iterdir():
        if entry.is_dir():
            folder.now[entry.name] = _load(entry)
        else:
            data = entry.read_bytes()
            folder.now[entry.name] = FileNode(data, data)
    folder.synced = dict(folder.now)
    return folder


def _store(folder: FolderNode, path: Path, variant: Variant) -> None:
    path.mkdir()
    for name, node in (folder.synced if variant == "cut" else folder.now).items():
        if isinstance(node, FolderNode):
            _store(node, path / name, variant)
        else:
            (path / name).write_bytes(node.content(variant))
