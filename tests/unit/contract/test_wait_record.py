"""What a wait's record says: rules 3, 23, 26, 27."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from django_belay.contract import envelope
from django_belay.contract.names import await_until_step
from django_belay.contract.wait_record import latest_newer_than, wait_record

NOW = datetime(2030, 1, 1, 12, 0, 0, 7, tzinfo=UTC)


def step(n: int, newer_than: datetime | None, name: str = "go") -> tuple[str, bytes]:
    record = wait_record(until=NOW, newer_than=newer_than)
    return await_until_step(name, n), envelope.encode(record)


def test_27_the_highest_n_speaks() -> None:
    steps = [step(9, NOW), step(10, NOW + timedelta(seconds=1)), step(2, None)]
    assert latest_newer_than("go", steps) == NOW + timedelta(seconds=1)
    assert latest_newer_than("go", [*steps, step(11, None)]) is None


def test_names_with_colons_are_told_apart() -> None:
    steps = [step(1, NOW, "go:1"), step(1, NOW + timedelta(1), "go")]
    assert latest_newer_than("go:1", steps) == NOW
    assert latest_newer_than("go", steps) == NOW + timedelta(1)


@pytest.mark.parametrize(
    "value",
    [None, b"", b"\x83t\x00", b"{", b"[1]", b'{"newer_than": 7}', b'{"newer_than": "soon"}',
     b'{"newer_than": "2030-01-01T00:00:00"}', b"null"],
)  # fmt: skip
def test_3_what_is_no_record_of_ours_excludes_nothing(value: bytes | None) -> None:
    assert latest_newer_than("go", [(await_until_step("go", 1), value)]) is None


@pytest.mark.parametrize(
    "name", ["$await:go:until", "$await:go:1", "$await:go:01:until", "$await:go:x:until", "go"]
)
def test_other_steps_are_passed_over(name: str) -> None:
    assert latest_newer_than("go", [(name, step(1, NOW)[1])]) is None
