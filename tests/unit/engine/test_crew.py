"""The processes of a worker as their supervisor keeps them."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from django_belay.engine.crew import Crew
from django_belay.engine.protocol import Channel

# Ends only when it is killed, or when the test is gone.
NEVER_READY = "import sys; sys.stdin.read()"


@pytest.fixture
def crew() -> Iterator[Crew]:
    ends: list[socket.socket] = []

    def spawn() -> tuple[subprocess.Popen[bytes], Channel]:
        ours, theirs = socket.socketpair()
        ends.extend((ours, theirs))
        return subprocess.Popen([sys.executable, "-c", NEVER_READY], stdin=subprocess.PIPE), Channel(ours)

    crew = Crew(spawn, 1)
    started = crew.fill()
    yield crew
    for member in started:
        member.process.kill()
        member.process.communicate()
    for end in ends:
        end.close()


def test_child_that_is_not_ready_when_the_worker_stops_is_no_error(
    crew: Crew, caplog: pytest.LogCaptureFixture
) -> None:
    (member,) = crew.members
    crew.stop(member, 5)
    member.process.wait(timeout=30)
    with caplog.at_level(logging.INFO, "django_belay.worker"):
        assert crew.reap() == [member]
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_child_that_dies_before_it_is_ready_is_an_error(crew: Crew, caplog: pytest.LogCaptureFixture) -> None:
    (member,) = crew.members
    member.process.kill()
    member.process.wait(timeout=30)
    assert crew.reap() == [member]
    assert "ended before it was ready" in caplog.text
