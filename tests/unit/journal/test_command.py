"""``belay_journal``: what scripts and operators see."""

from __future__ import annotations

import errno
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_belay.storage.journal.files import fail
from django_belay.storage.journal.format.value import encode_value

from .fixtures import by_name, load


@pytest.fixture
def base(tmp_path: Path) -> str:
    return os.path.realpath(tmp_path)


def run(*args: str) -> str:
    out = io.StringIO()
    call_command("belay_journal", *args, stdout=out)
    return out.getvalue()


def run_json(*args: str) -> tuple[int, dict[str, Any]]:
    out = io.StringIO()
    code = 0
    try:
        call_command("belay_journal", *args, "--format", "json", stdout=out)
    except SystemExit as error:
        code = int(error.code or 0)
    return code, json.loads(out.getvalue())


def init(base: str, name: str = "store") -> str:
    path = f"{base}/{name}"
    code, report = run_json("init", path, "--durability", "write")
    assert (code, report["ok"]) == (0, True)
    return path


def test_verify_tells_a_whole_store_from_a_damaged_one(base: str) -> None:
    path = init(base)
    code, report = run_json("verify", path)
    assert (code, report["ok"], report["records"]) == (0, True, 0)
    segment = next(Path(path).glob("epochs/*/segments/*.tay"))
    with segment.open("ab") as file:
        file.write(b"TA")
    code, report = run_json("verify", path)
    assert code == 1
    assert report["ok"] is False
    assert report["refusal"] == "ambiguous_short_tail"
    assert (report["kind"], report["path"], report["offset"]) == ("incomplete_tail", str(segment), 44)
    assert report["last_good_sequence"] == 0


def test_text_output_says_what_to_do(base: str) -> None:
    path = init(base)
    assert "records: 0" in run("inspect", path)
    with pytest.raises(CommandError) as caught:
        run("inspect", f"{base}/nothing")
    assert caught.value.returncode == 1
    assert "existing_root_or_lock_missing" in str(caught.value)
    with pytest.raises(CommandError) as caught:
        run("init", path, "--durability", "write")
    assert "already_initialized" in str(caught.value)


def test_compact_backup_restore_salvage_round(base: str) -> None:
    path = init(base)
    code, report = run_json("compact", path, "--durability", "write", "--retention", "infinity")
    assert (code, report["reclaimed"]) == (0, True)
    write = ("--durability", "write")
    assert run_json("backup", path, f"{base}/copy", f"{base}/c.json", *write)[0] == 0
    code, report = run_json("restore", f"{base}/copy", f"{base}/back", f"{base}/b.json", *write)
    assert (code, report["refusal"]) == (1, "restore_catalog_required")
    code, report = run_json(
        "restore", f"{base}/copy", f"{base}/back", f"{base}/b.json", "--verify", f"{base}/c.json", *write
    )
    assert (code, report["files"]) == (0, 5)
    code, report = run_json("salvage", f"{base}/back", f"{base}/saved", *write)
    assert (code, report["fault"], report["store"]["records"]) == (0, None, 0)


def test_decode_says_the_value_or_the_refusal() -> None:
    hex_bytes = encode_value({"a": [1, "x", None, -2.5, b"\x01"]}).hex()
    code, report = run_json("decode", "value", hex_bytes)
    assert (code, report["value"]) == (0, {"a": [1, "x", None, -2.5, {"hex": "01"}]})
    code, report = run_json("decode", "value", "0a")
    assert (code, report["refusal"], report["kind"]) == (1, "unknown_tag", "invalid_payload")
    code, report = run_json("decode", "event:9:1", "00")
    assert (code, report["refusal"]) == (1, "unsupported_payload_schema")
    code, report = run_json("decode", "event:99:1", "00")
    assert (code, report["refusal"]) == (1, "unknown_event_type")
    code, report = run_json("decode", "record", "544159")
    assert (code, report["refusal"], report["details"]) == (1, "incomplete", ["header", "3", "21"])


def test_decode_walks_a_segment_as_verify_does() -> None:
    data = load("segment-sealed")
    code, report = run_json("decode", "segment", data.hex())
    assert (code, report["value"]["state"], report["value"]["record_count"]) == (0, "sealed", 2)
    assert report["value"]["records"][0]["offset"] == 44
    code, report = run_json("decode", "segment", data[:-1].hex())
    assert (code, report["refusal"], report["last_good_sequence"]) == (1, "incomplete_footer", None)
    code, report = run_json("decode", "segment", (data[:40] + b"\x00" + data[41:]).hex())
    assert (code, report["refusal"], report["details"]) == (1, "corrupt_segment_header", ["checksum"])


@pytest.mark.parametrize("name", sorted(by_name()))
def test_decode_reads_every_fixture(name: str) -> None:
    if name.startswith("segment"):
        kind = "segment"
    elif name.startswith("metadata"):
        kind = name.split("-")[1]
    else:
        kind = "record"
        _, event_type, schema, *_ = name.split("-")
        payload = load(name)[24:-4].hex()
        assert run_json("decode", f"event:{event_type}:{schema}", payload)[0] == 0
    assert run_json("decode", kind, load(name).hex())[0] == 0


def test_decode_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("09 0000\n0000"))
    assert run_json("decode", "value", "-")[1]["value"] == {}


def test_a_failing_system_call_is_reported_like_any_refusal(
    monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("django_belay.management.commands.belay_journal.inspect", fail)
    code, report = run_json("verify", base)
    assert (code, report["refusal"], report["kind"]) == (1, "eacces", "io")


class Full:
    """A disk that is full from one failpoint on."""

    def __init__(self, point: str) -> None:
        self.point = point

    def before(self, name: str) -> None:
        if name == self.point:
            raise OSError(errno.ENOSPC, "No space left on device")

    def after(self, step: fail.Step) -> None:
        return


@pytest.mark.parametrize(
    ("words", "point", "path", "left"),
    [
        (("salvage", "{b}/store", "{b}/new"), "salvage.tail.create", "{b}/new", ["{b}/new"]),
        (("backup", "{b}/store", "{b}/new", "{b}/c.json"), "copy.rename", "{b}/new", ["{b}/.new.tay-copy-"]),
        (
            ("backup", "{b}/store", "{b}/new", "{b}/c.json"),
            "copy.catalog.write",
            "{b}/c.json",
            ["{b}/new", "{b}/c.json"],
        ),
    ],
    ids=["salvage", "backup", "catalog"],
)
def test_a_full_disk_names_what_is_full_and_what_was_left(
    base: str, words: tuple[str, ...], point: str, path: str, left: list[str]
) -> None:
    init(base)
    with fail.arm(Full(point)):
        code, report = run_json(*(word.format(b=base) for word in words), "--durability", "write")
    assert (code, report["refusal"], report["path"]) == (1, "enospc", path.format(b=base))
    assert "free space on that file system" in report["message"]
    for made in left:
        assert made.format(b=base) in report["message"].split("remove ")[1]
    assert run_json("verify", f"{base}/store")[0] == 0


def test_a_refusal_that_made_nothing_asks_nobody_to_remove_anything(base: str) -> None:
    init(base)
    for words in (
        ("salvage", f"{base}/none", f"{base}/new"),
        ("salvage", f"{base}/store", f"{base}/store"),
        ("backup", f"{base}/store", f"{base}/store", f"{base}/c"),
    ):
        assert "remove" not in run_json(*words, "--durability", "write")[1]["message"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("decode", "value", "zz"), "HEX is not hexadecimal"),
        (("decode", "value", "000"), "HEX is not hexadecimal"),
        (("decode", "nope", "00"), "usage: belay_journal decode KIND [HEX | -]"),
        (("decode", "event:1", "00"), "one of record, segment, value, current, manifest, marker, event:TYPE"),
        (("decode", "event:x:1", "00"), "there is no KIND event:x:1"),
        (("decode", f"event:{'9' * 5000}:1", "00"), "there is no KIND event:999"),
        (("verify", ""), "PATH is empty"),
        (("salvage", "", "new"), "SOURCE is empty"),
        (("backup", "here", "", "catalog"), "DESTINATION is empty"),
        (("restore", "here", "there", "catalog", "--verify", ""), "--verify is empty"),
    ],
)
def test_usage_errors_are_not_refusals(words: tuple[str, ...], said: str) -> None:
    for more in ((), ("--format", "json")):
        with pytest.raises(CommandError) as caught:
            run(*words, *more)
        assert caught.value.returncode == 2
        assert said in str(caught.value)


def test_raw_bytes_on_standard_input_are_told_how_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.TextIOWrapper(io.BytesIO(load("segment-sealed")), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", raw)
    with pytest.raises(CommandError) as caught:
        run("decode", "segment")
    assert caught.value.returncode == 2
    assert "xxd -p" in str(caught.value)


def test_standard_input_without_an_end_is_read_no_further_than_a_segment_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Endless:
        given = 0

        def read(self, size: int) -> str:
            self.given += size
            return "00" * (size // 2)

    endless = Endless()
    monkeypatch.setattr("sys.stdin", endless)
    monkeypatch.setattr("django_belay.management.commands.belay_journal.MAX_SEALED_BYTES", 4 << 20)
    with pytest.raises(CommandError) as caught:
        run("decode", "value")
    assert "the largest segment there is" in str(caught.value)
    assert endless.given < 20 << 20


def test_text_comes_out_wherever_it_goes() -> None:
    """A terminal that knows ASCII alone is no reason for a traceback, nor may bytes steer one."""
    hex_bytes = encode_value({"t": "caf\u00e9 \u009b31m \u202e \x1b[2J"}).hex()
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    call_command("belay_journal", "decode", "value", hex_bytes, stdout=out)
    out.flush()
    assert b'{"t": "caf\\xe9 \\x9b31m \\u202e \\u001b[2J"}' in raw.getvalue()


def test_decode_gives_no_advice_on_a_directory() -> None:
    _, report = run_json("decode", "value", "0a")
    assert report["message"].startswith("unknown_tag")
    assert "directory" not in report["message"]


def test_hexadecimal_may_be_cut_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_belay.management.commands.belay_journal._STDIN_CHUNK", 3)
    monkeypatch.setattr("sys.stdin", io.StringIO("0 9\n00 000 000\n"))
    assert run_json("decode", "value", "-")[1]["value"] == {}
