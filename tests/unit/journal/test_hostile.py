"""Bytes whose checksums are right and whose content is not what any writer means: refused, never a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_belay.exceptions import JournalError
from django_belay.storage.journal.files.compaction import compact
from django_belay.storage.journal.files.inspection import inspect
from django_belay.storage.journal.files.journal import JournalOptions, open_journal
from django_belay.storage.journal.files.salvage import salvage
from django_belay.storage.journal.format.extension import decode_body, decode_extension, encode_body
from django_belay.storage.journal.format.manifest import INFINITY, Retention
from django_belay.storage.journal.state.rows import COLUMNS, read_row

from . import by_hand
from .refusals import reason

OPTIONS = JournalOptions(durability="write", writer="inline", reserve_bytes=0)
STORE, EPOCH, JOB = b"S" * 16, b"E" * 16, b"J" * 16


def make_store(root: Path, *records: tuple[int, int, bytes]) -> str:
    """A store by hand whose tail holds these records, well formed as far as checksums go."""
    segments = root / "epochs" / f"e-{EPOCH.hex()}" / "segments"
    segments.mkdir(parents=True)
    (root / ".tay-owner.lock").touch()
    manifest = by_hand.manifest(
        {
            "base_segments": [], "captured_at": 1, "epoch_id": by_hand.Opaque(EPOCH), "source_epoch_id": None,
            "source_frontier": 0, "source_segments": [], "store_id": by_hand.Opaque(STORE),
            "tail_first_sequence": 1, "tail_segment_id": 1, "terminal_retention": "infinity",
        }
    )  # fmt: skip
    (segments.parent / "MANIFEST").write_bytes(manifest)
    (root / "STORE-V2").write_bytes(by_hand.marker(STORE))
    (root / "CURRENT").write_bytes(by_hand.current(STORE, EPOCH, manifest))
    frames = [
        by_hand.record(kind, schema, n, data) for n, (kind, schema, data) in enumerate(records, start=1)
    ]
    (segments / f"{1:020d}.tay").write_bytes(by_hand.header(1, 1, STORE) + b"".join(frames))
    return str(root)


def operation(effects: bytes) -> tuple[int, int, bytes]:
    body = {"at": 1, "client": "c", "effects": by_hand.Opaque(effects), "op": "insert", "request": 1}
    return 128, 1, by_hand.value(body)


def changes(columns: str) -> tuple[int, int, bytes]:
    return operation(b'{"jobs":{"%b":{"revision":1,"set":{%b}}}}' % (JOB.hex().encode(), columns.encode()))


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("content", ["[]", "{}", '["succeeded"]'])
def test_what_decisions_go_by_is_a_number_or_a_text(tmp_path: Path, column: str, content: str) -> None:
    path = make_store(tmp_path / "store", operation(b"{}"), changes(f'"{column}":{content}'))
    assert reason(inspect, path) == "invalid_extension"
    report = salvage(path, f"{tmp_path}/saved", durability="write")
    assert (report.last_good_sequence, report.summary.records) == (1, 1)
    row = by_hand.value(
        {
            "job_id": by_hand.Opaque(JOB),
            "row": by_hand.Opaque(b'{"%b":%b,"revision":1}' % (column.encode(), content.encode())),
        }
    )
    assert reason(read_row, decode_extension(129, 1, row)) == "invalid_extension"


@pytest.mark.parametrize("state", ["null", "1", "true", '"no state"'])
def test_a_state_that_is_none_is_no_end_of_a_job(tmp_path: Path, state: str) -> None:
    path = make_store(tmp_path / "store", changes(f'"state":{state}'))
    with open_journal(path, OPTIONS) as journal:
        compact(journal, now_ms=2, retention=Retention(unit="hours", amount=1))
    assert inspect(path).extended_jobs == 1


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity", "9" * 5000, "1" * 400 + ".5"])
def test_a_number_that_could_not_be_written_again_is_refused(tmp_path: Path, number: str) -> None:
    """1e999 is JSON, and infinity in every float: a compaction could not write what it had read."""
    path = make_store(tmp_path / "store", changes(f'"x":{number}'))
    assert reason(inspect, path) == "invalid_extension"


@pytest.mark.parametrize("depth", [10, 300, 2_000, 500_000])
def test_depth_ends_in_a_refusal_or_is_kept_by_a_compaction(tmp_path: Path, depth: int) -> None:
    path = make_store(tmp_path / "store", changes('"x":' + "[" * depth + "]" * depth))
    if (name := outcome(inspect, path)) != "ok":
        assert name == "invalid_extension"
        return
    with open_journal(path, OPTIONS) as journal:
        compact(journal, now_ms=2, retention=INFINITY)
    assert inspect(path).extended_jobs == 1


@pytest.mark.parametrize("spare", range(-40, 40, 4))
def test_depth_near_the_stack_of_the_interpreter_is_no_traceback(spare: int) -> None:
    """What was read at one depth of the stack may have to be written at another."""
    depth = sys.getrecursionlimit() - stack_depth() + spare

    def write(content: Any, further: int) -> bytes:
        return encode_body(content) if further == 0 else write(content, further - 1)

    def write_back() -> None:
        write(decode_body(b"[" * depth + b"]" * depth), 60)

    assert outcome(write_back) in ("ok", "invalid_extension")


def outcome(call: Callable[..., object], *args: object) -> str:
    """The leaf name of a refusal, or ``ok``."""
    try:
        call(*args)
    except JournalError as error:
        return error.refusal
    return "ok"


def stack_depth() -> int:
    frame, count = sys._getframe(), 0
    while frame is not None:
        frame, count = frame.f_back, count + 1  # type: ignore[assignment]
    return count
