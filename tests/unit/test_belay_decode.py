"""``manage.py belay_decode``: parse and print, no database."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

PID = "83586400016e0000005e0000000000000000"


def run(*args: str) -> str:
    out = io.StringIO()
    call_command("belay_decode", *args, stdout=out)
    return out.getvalue().strip()


def feed(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_shows_the_json_view_of_an_erlang_term() -> None:
    assert json.loads(run("--hex", "83740000000164000161610a")) == {"a": 10}


@pytest.mark.parametrize("text", ["\\x836101", "0x836101", " 83 61 01 "])
def test_takes_hexadecimal_as_psql_and_others_print_it(text: str) -> None:
    assert run("--hex", text) == "1"


def test_reads_a_file(tmp_path: Path) -> None:
    file = tmp_path / "value"
    file.write_bytes('{"name":"kůň"}'.encode())
    assert run(str(file)) == '{\n  "name": "kůň"\n}'


def test_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, b"[1,18446744073709551616]")
    assert run("--format", "json") == '{"encoding": "json", "value": [1, 18446744073709551616]}'


def test_shows_the_bytes_of_an_opaque_value() -> None:
    assert run("--hex", PID) == f"opaque, 18 bytes: a process id\n{PID}"


def test_reports_an_opaque_value_as_json() -> None:
    report = json.loads(run("--hex", PID, "--format", "json"))
    assert report == {"encoding": "etf", "opaque": {"reason": "a process id", "bytes": 18, "hex": PID}}


def test_says_why_bytes_are_refused_and_exits_with_1() -> None:
    with pytest.raises(CommandError, match="refused: ends where a term should begin") as refused:
        run("--hex", "83")
    assert refused.value.returncode == 1


def test_reports_a_refusal_as_json_too() -> None:
    out = io.StringIO()
    with pytest.raises(CommandError):
        call_command("belay_decode", "--hex", "7b", "--format", "json", stdout=out)
    report = json.loads(out.getvalue())
    assert report["encoding"] == "json"
    assert report["refused"].startswith("not valid JSON")


def test_refuses_an_empty_input(monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, b"")
    with pytest.raises(CommandError, match="no bytes at all"):
        run()


def test_names_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"cannot read .*missing"):
        run(str(tmp_path / "missing"))


def test_refuses_what_is_not_hexadecimal() -> None:
    with pytest.raises(CommandError, match="pairs of hexadecimal digits"):
        run("--hex", "8x")


def test_a_deep_value_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, b"[" * 250 + b"]" * 250)
    assert run().count("[") == 250
