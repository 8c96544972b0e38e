"""Progress bars of commands: on a terminal alone, on one line, and never in the way of a message."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import OutputWrapper

from django_belay.management.bar import Bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = os.path.realpath(tmp_path / "store")
    call_command("belay_journal", "init", path, "--durability", "write", stdout=io.StringIO())
    return path


def on_a_terminal(*words: str) -> tuple[str, str]:
    out, error = io.StringIO(), Terminal()
    call_command("belay_journal", *words, stdout=out, stderr=error, force_color=True)
    return out.getvalue(), error.getvalue()


def test_a_bar_is_drawn_over_itself_and_leaves_its_line(store: str) -> None:
    _, drawn = on_a_terminal("verify", store)
    assert drawn.startswith("\r[")
    assert drawn.endswith("\n")
    assert drawn.count("\n") == 1
    assert "100%" in drawn


def test_a_bar_has_no_colour_of_an_error(store: str) -> None:
    assert "\x1b" not in on_a_terminal("verify", store)[1]


def test_a_refusal_begins_a_line_of_its_own(store: str, tmp_path: Path) -> None:
    error = Terminal()
    with pytest.raises(CommandError):
        call_command("belay_journal", "backup", store, f"{tmp_path}/none/copy", f"{tmp_path}/c", stderr=error)
    assert error.getvalue().endswith("\n")


@pytest.mark.parametrize(
    "words",
    [
        ("compact", "{store}"),
        ("backup", "{store}", "{store}-copy", "{store}-catalog"),
        ("salvage", "{store}", "{store}-saved"),
    ],
    ids=["compact", "backup", "salvage"],
)
def test_every_long_action_shows_one(store: str, words: tuple[str, ...]) -> None:
    _, drawn = on_a_terminal(*(word.format(store=store) for word in words), "--durability", "write")
    assert drawn.startswith("\r[")
    assert drawn.count("\n") == 1


def test_nothing_is_drawn_where_nobody_looks(store: str) -> None:
    error = io.StringIO()
    call_command("belay_journal", "verify", store, stdout=io.StringIO(), stderr=error)
    assert error.getvalue() == ""
    error = Terminal()
    call_command("belay_journal", "verify", store, "--format", "json", stdout=io.StringIO(), stderr=error)
    assert error.getvalue() == ""


def test_a_line_never_wraps_and_covers_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = Terminal()
    bar = Bar(OutputWrapper(out))
    bar.show(0, 2, "a long text about what is done")
    bar.show(1, 2, "", step="another step is drawn at once")
    bar.show(2, 2, "")
    bar.end()
    bar.end()
    lines = out.getvalue().rstrip("\n").split("\r")[1:]
    assert [len(line) for line in lines] == [39, 39, 38]
    assert "  50%" in lines[1]
    assert out.getvalue().count("\n") == 1


def test_a_total_of_nothing_is_whole() -> None:
    out = Terminal()
    Bar(OutputWrapper(out)).show(0, 0, "records")
    assert "100% records" in out.getvalue()
