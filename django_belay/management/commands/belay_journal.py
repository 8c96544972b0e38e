"""``belay_journal``: make, look at, compact, copy and salvage Store-v2 journals."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_belay import conf
from django_belay.exceptions import ConfigurationError, JournalError, StorageError, Unavailable
from django_belay.management.bar import Bar
from django_belay.management.report import printable
from django_belay.storage.journal.files.compaction import compact
from django_belay.storage.journal.files.copy import CopyOptions, backup, restore
from django_belay.storage.journal.files.disk import io_error
from django_belay.storage.journal.files.foreign import look_at, look_at_denied
from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.inspection import inspect, refusal_as_json
from django_belay.storage.journal.files.journal import Journal, JournalOptions, open_journal
from django_belay.storage.journal.files.recovery import Progress
from django_belay.storage.journal.files.salvage import salvage
from django_belay.storage.journal.format.describe import KINDS, describe, is_kind
from django_belay.storage.journal.format.limits import MAX_SEALED_BYTES
from django_belay.storage.journal.format.manifest import INFINITY, MAX_HOURS, Retention
from django_belay.storage.journal.format.refusal import advised, explained

REFUSED = 1
USAGE = 2

# Refusals of a path where no store could be taken: what lies there says more than their names.
_MISPLACED = frozenset(
    {
        "already_initialized",
        "eloop",
        "enotdir",
        "existing_root_or_lock_missing",
        "initialization_required",
        "missing_history",
        "missing_metadata",
        "store_v1_unsupported",
    }
)
# There is no directory to preserve where a few bytes were given.
_NO_STORE = (
    "the first rule that these bytes break; the reference page of the format lists them in their order"
)
_METHODS = {"import": "load"}  # the one is a word of Python
_DENIED = frozenset({"eacces", "eperm"})
_STDIN_CHUNK = 1 << 20


class Command(BaseCommand):
    help = (
        "Makes, inspects, verifies, decodes, compacts, copies, salvages and serves Store-v2 journals. "
        "Exit status: 0 done; 1 refused, with nothing changed in the source; 2 called wrongly. "
        '--format json prints one object, whose "refusal" is the name of the first rule that was broken.'
    )
    requires_system_checks: list[str] = []  # forensics must work where nothing is configured

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        self._store(actions, "init", "make a new store", "--retention", "--use-empty", "--durability")
        self._store(actions, "inspect", "print what a store holds, in numbers")
        self._store(actions, "verify", "read and check every byte; exit 1 when the store is refused")
        self._store(
            actions,
            "compact",
            "write a new generation without what has expired",
            "--retention",
            "--durability",
        )
        self._decode(actions)
        self._copy(actions, "backup", "copy a stopped store to a new directory")
        self._copy(actions, "restore", "copy a backup to a new directory once it matches its catalog")
        self._salvage(actions)
        self._serve(actions)
        self._transfer(
            actions, "export", "write the jobs of the settings' storage, whichever it is, to a file"
        )
        self._transfer(actions, "import", "read an exported file into the settings' storage, which is empty")

    def handle(self, *args: Any, **options: Any) -> None:
        action = options["action"]
        self.bar = Bar(self.stderr) if options["format"] == "text" and self.stderr.isatty() else None
        try:
            report = getattr(self, f"do_{_METHODS.get(action, action)}")(options)
        except JournalError as error:
            self._end_bar()
            self._refuse(error, options)
        except OSError as error:
            self._end_bar()
            self._refuse(io_error(error, str(options.get("path") or options.get("source") or "")), options)
        else:
            self._end_bar()
            self._print({"ok": True, **report}, options)

    # -- actions --------------------------------------------------------------

    def do_init(self, options: dict[str, Any]) -> dict[str, Any]:
        path = self._path(options)
        store_id = initialise(
            path,
            now_ms=_now_ms(),
            retention=options["retention"] or Retention(unit="hours", amount=24),
            use_empty=options["use_empty"],
            durability=options["durability"],
            validated_filesystem=options["validated_filesystem"],
        )
        return {"path": path, "store_id": store_id.hex()}

    def do_inspect(self, options: dict[str, Any]) -> dict[str, Any]:
        return asdict(inspect(self._path(options), progress=self._read()))

    do_verify = do_inspect

    def do_decode(self, options: dict[str, Any]) -> dict[str, Any]:
        kind = options["kind"]
        if not is_kind(kind):
            raise CommandError(
                f"there is no KIND {printable(kind)}: it is one of {', '.join(KINDS)}, as in event:8:1\n"
                "usage: belay_journal decode KIND [HEX | -]",
                returncode=USAGE,
            )
        chunks = iter([options["hex"]]) if options["hex"] != "-" else _standard_input()
        try:
            data = _unhex(chunks)
        except ValueError as error:
            raise CommandError(
                f"HEX is not hexadecimal: {error}\nraw bytes go through `xxd -p`", returncode=USAGE
            ) from error
        try:
            return {"kind": kind, "value": describe(kind, data)}
        except JournalError as error:
            raise advised(error, _NO_STORE) from None

    def do_compact(self, options: dict[str, Any]) -> dict[str, Any]:
        owning = JournalOptions(
            durability=options["durability"], validated_filesystem=options["validated_filesystem"]
        )
        progress = self._read()
        with open_journal(self._path(options), owning, progress=progress) as journal:
            retention = options["retention"] or journal.recovered.manifest.terminal_retention
            report = compact(
                journal,
                now_ms=_now_ms(),
                retention=retention,
                at_rest=True,
                pace=self._rewritten(journal),
            )
        return {**asdict(report), "epoch_id": report.epoch_id.hex()}

    def do_backup(self, options: dict[str, Any]) -> dict[str, Any]:
        source, destination, catalog = _paths(options)
        copying = self._copying(options)
        return asdict(backup(source, destination, catalog, copying, progress=self._copied()))

    def do_restore(self, options: dict[str, Any]) -> dict[str, Any]:
        source, destination, catalog = _paths(options)
        verify = None if options["verify"] is None else _absolute(options["verify"], "--verify")
        copying, progress = self._copying(options), self._copied()
        return asdict(restore(source, destination, catalog, verify, copying, progress=progress))

    def do_salvage(self, options: dict[str, Any]) -> dict[str, Any]:
        report = salvage(
            _absolute(options["source"], "SOURCE"),
            _absolute(options["destination"], "DESTINATION"),
            durability=options["durability"],
            validated_filesystem=options["validated_filesystem"],
            progress=self._read(),
            written=self._counted("written"),
            checked=self._counted("checked"),
        )
        return {
            "fault": None if report.fault is None else refusal_as_json(report.fault),
            "last_good_sequence": report.last_good_sequence,
            "bytes_behind": report.bytes_behind,
            "segments_behind": report.segments_behind,
            "frame_dropped": report.frame_dropped,
            "store": asdict(report.summary),
        }

    def do_serve(self, options: dict[str, Any]) -> dict[str, Any]:
        from django_belay.management.serving import serve  # forensics needs none of it

        def say(text: str) -> None:
            with suppress(OSError):  # the terminal may be gone; the owner goes on
                self.stderr.write(text, str)

        try:
            owned = serve(options["path"], idle_exit_s=options["idle_exit"], say=say)
        except (ConfigurationError, Unavailable) as error:
            raise CommandError(str(error), returncode=USAGE) from error
        return {"served": owned}

    def do_export(self, options: dict[str, Any]) -> dict[str, Any]:
        from django_belay.management import moving

        return self._move(moving.export, options)

    def do_load(self, options: dict[str, Any]) -> dict[str, Any]:
        from django_belay.management import moving

        return self._move(moving.load, options)

    def _move(self, move: Callable[..., dict[str, int]], options: dict[str, Any]) -> dict[str, Any]:
        path = Path(_absolute(options["file"], "FILE"))
        try:
            counts = move(path, is_dry=options["dry_run"], progress=self._moved(options["action"]))
        except JournalError:
            raise
        except (StorageError, ConfigurationError) as error:
            self._end_bar()
            if options["format"] == "json":
                self.stdout.write(json.dumps({"ok": False, "message": str(error)}))
                sys.exit(REFUSED)
            raise CommandError(f"{options['action']} refused: {error}", returncode=REFUSED) from error
        return {"file": str(path), "dry_run": options["dry_run"], "storage": conf.get().backend, **counts}

    def _moved(self, action: str) -> Callable[[str, int, int], None]:
        def show(table: str, done: int, total: int) -> None:
            if self.bar is not None:
                self.bar.show(done, total, f"{done:,} of {total:,} rows: {table}")

        return show

    # -- arguments --------------------------------------------------------------

    def _store(self, actions: Any, name: str, text: str, *extras: str) -> None:
        parser = actions.add_parser(name, help=text, description=text)
        parser.add_argument("path", nargs="?", help="the store's root; default: that of the settings")
        _common(parser)
        if "--retention" in extras:
            parser.add_argument(
                "--retention", type=_retention, help="hours that finished jobs are kept, or infinity"
            )
        if "--use-empty" in extras:
            parser.add_argument("--use-empty", action="store_true", help="accept an existing empty directory")
        if "--durability" in extras:
            _durability(parser)

    def _decode(self, actions: Any) -> None:
        text = "decode one piece of bytes; exit 1 when it is refused"
        parser = actions.add_parser("decode", help=text, description=text)
        parser.add_argument("kind", metavar="KIND", help=", ".join(KINDS))
        parser.add_argument(
            "hex", metavar="HEX", nargs="?", default="-", help="hexadecimal, or - for standard input"
        )
        _common(parser)

    def _copy(self, actions: Any, name: str, text: str) -> None:
        parser = actions.add_parser(name, help=text, description=text)
        parser.add_argument("source", help="the root of the stopped store, or of its copy")
        parser.add_argument("destination", help="the directory to make; it must not exist")
        parser.add_argument("catalog", help="the catalog to write, outside source and destination")
        if name == "restore":
            parser.add_argument("--verify", help="the catalog the backup was written with (required)")
        most = CopyOptions()
        parser.add_argument(
            "--max-files",
            type=int,
            default=most.max_files,
            help=f"refuse more files than this ({most.max_files:,})",
        )
        parser.add_argument(
            "--max-bytes",
            type=int,
            default=most.max_bytes,
            help=f"refuse more bytes than this ({most.max_bytes:,})",
        )
        _common(parser)
        _durability(parser)

    def _salvage(self, actions: Any) -> None:
        text = "write a new store from what is whole in a damaged one, which is only read"
        parser = actions.add_parser("salvage", help=text, description=text)
        parser.add_argument("source", help="the damaged store's root; it is only read")
        parser.add_argument("destination", help="the new store's root; it must not exist")
        _common(parser)
        _durability(parser)

    def _transfer(self, actions: Any, name: str, text: str) -> None:
        parser = actions.add_parser(name, help=text, description=text)
        parser.add_argument("file", metavar="FILE", help="one JSON object a line")
        parser.add_argument(
            "--dry-run", action="store_true", help="check everything, count, and write nothing"
        )
        _common(parser)

    def _serve(self, actions: Any) -> None:
        text = "own the journal for web processes and other commands, without running jobs"
        parser = actions.add_parser("serve", help=text, description=text)
        parser.add_argument(
            "path",
            nargs="?",
            metavar="DIRECTORY",
            help="the journal's directory; default: that of the settings",
        )
        parser.add_argument(
            "--idle-exit",
            type=float,
            metavar="S",
            help="end when nobody has been connected for so many seconds",
        )
        _common(parser)

    def _path(self, options: dict[str, Any]) -> str:
        if options["path"] is not None:
            return _absolute(options["path"], "PATH")
        journal = conf.get().journal
        if journal is None or not journal.directory:
            raise CommandError(
                "name the store's root: the settings name no journal directory", returncode=USAGE
            )
        return os.path.join(os.path.abspath(journal.directory), "store")

    def _copying(self, options: dict[str, Any]) -> CopyOptions:
        return CopyOptions(
            durability=options["durability"],
            validated_filesystem=options["validated_filesystem"],
            max_files=options["max_files"],
            max_bytes=options["max_bytes"],
        )

    # -- output --------------------------------------------------------------

    def _print(self, report: dict[str, Any], options: dict[str, Any]) -> None:
        if options["format"] == "json":
            self.stdout.write(json.dumps(report))
            return
        self.stdout.write(self.style.SUCCESS(f"{options['action']}: ok"))
        self._print_fields({name: value for name, value in report.items() if name != "ok"}, "  ")

    def _print_fields(self, fields: dict[str, Any], margin: str) -> None:
        for name, value in fields.items():
            head = f"{margin}{name.replace('_', ' ')}:"
            if name == "fault" and value is not None:
                value = value["message"]
            if name == "store":
                self.stdout.write(head)
                self._print_fields(value, margin + "  ")
                continue
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            self.stdout.write(f"{head} {self._as_printed(text)}")

    def _as_printed(self, text: str) -> str:
        """One line that this terminal, or file, can take."""
        encoding = getattr(self.stdout, "encoding", None) or "utf-8"
        return printable(text).encode(encoding, "backslashreplace").decode(encoding)

    def _refuse(self, error: JournalError, options: dict[str, Any]) -> None:
        error = _explained(error, options)
        message = str(error) + _left_behind(error, options)
        if options["format"] == "json":
            self.stdout.write(json.dumps({**refusal_as_json(error), "message": message}))
            sys.exit(REFUSED)
        text = printable(f"{options['action']} refused: {message}")
        raise CommandError(text, returncode=REFUSED) from error

    def _end_bar(self) -> None:
        if self.bar is not None:
            self.bar.end()

    def _read(self) -> Progress | None:
        return self._counted("read")

    def _counted(self, what: str) -> Progress | None:
        bar = self.bar
        if bar is None:
            return None
        return lambda records, done, total: bar.show(done, total, f"{records:,} records {what}", step=what)

    def _rewritten(self, journal: Journal) -> Callable[[int], None] | None:
        """A compaction counts anew whenever it reads back what it wrote."""
        bar, last, what = self.bar, 0, "written"
        if bar is None:
            return None
        total = len(journal.state.jobs) + len(journal.state.extended)

        def pace(done: int) -> None:
            nonlocal last, what
            if done < last:
                what = "checked"
            last = done
            bar.show(done, total, f"{done:,} records {what}", step=what)

        return pace

    def _copied(self) -> Callable[[int, int], None] | None:
        bar = self.bar
        if bar is None:
            return None
        bar.show(0, 1, "reading the source", step="read")
        return lambda done, total: bar.show(done, total, f"{done:,} of {total:,} bytes copied", step="copied")


def _paths(options: dict[str, Any]) -> tuple[str, str, str]:
    return (
        _absolute(options["source"], "SOURCE"),
        _absolute(options["destination"], "DESTINATION"),
        _absolute(options["catalog"], "CATALOG"),
    )


def _absolute(path: str, name: str) -> str:
    """An empty name would be the working directory: a variable of a script that was never set."""
    if not path or "\x00" in path:
        raise CommandError(f"{name} is empty or no path: name a directory", returncode=USAGE)
    return os.path.abspath(path)


def _explained(error: JournalError, options: dict[str, Any]) -> JournalError:
    """The refusal with what lies at the path that was asked for."""
    asked = options.get("path") or options.get("source")
    if error.refusal in _DENIED and error.path is not None:
        found = look_at_denied(error.path)
    elif error.refusal in _MISPLACED and asked:
        found = look_at(os.path.abspath(asked))
        if error.refusal == "already_initialized":
            return explained(error, "a store" if found is None else found.what)
    else:
        return error
    return error if found is None else explained(error, found.what, found.advice)


def _left_behind(error: JournalError, options: dict[str, Any]) -> str:
    """What a copy or a salvage that was broken off has made; it has no authority, and is never taken up."""
    destination = options.get("destination")
    if not destination or error.kind == "argument":
        return ""
    parent, name = os.path.split(os.path.abspath(destination))
    made = [name] if os.path.lexists(destination) else []
    with suppress(OSError):
        made += sorted(entry for entry in os.listdir(parent) if entry.startswith(f".{name}.tay-copy-"))
    if not made:
        return ""
    catalog = options.get("catalog")
    made = [os.path.join(parent, entry) for entry in made]
    made += [os.path.abspath(catalog)] if catalog and os.path.lexists(catalog) else []
    paths = " and ".join(made)
    return f". What was made so far stays: remove {paths} before you try again"


def _standard_input() -> Iterator[str]:
    while chunk := sys.stdin.read(_STDIN_CHUNK):
        yield chunk


def _unhex(chunks: Iterator[str]) -> bytes:
    """The bytes that hexadecimal text says; no kind is larger than a sealed segment."""
    data, odd = bytearray(), ""
    for chunk in chunks:
        digits = odd + "".join(chunk.split())
        odd = digits[-1] if len(digits) % 2 else ""
        data += bytes.fromhex(digits[: len(digits) - len(odd)])
        if len(data) > MAX_SEALED_BYTES:
            raise ValueError(f"it says more than {MAX_SEALED_BYTES:,} bytes, the largest segment there is")
    data += bytes.fromhex(odd)
    return bytes(data)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=["text", "json"], default="text")


def _durability(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--durability", choices=["sync", "write"], default="sync", help="write does not sync: for development"
    )
    parser.add_argument(
        "--validated-filesystem",
        action="store_true",
        help="vouch that a file system other than ext4, XFS and Btrfs keeps what it syncs",
    )


def _retention(text: str) -> Retention:
    if text == "infinity":
        return INFINITY
    if not text.isdigit() or not 1 <= int(text) <= MAX_HOURS:
        raise argparse.ArgumentTypeError("a whole number of hours from 1, or infinity")
    return Retention(unit="hours", amount=int(text))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
