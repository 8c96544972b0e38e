"""Children start whatever state the worker's own files are in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

CHILD = """
import os, socket, sys
from django_belay.engine.protocol import Channel
os.fstat(0), os.fstat(1), os.fstat(2)
Channel(socket.socket(fileno=int(sys.argv[1]))).send({"t": "ready"})
"""
SUPERVISOR = f"""
import sys
from django_belay.engine.spawn import spawn
process, channel = spawn(["-c", {CHILD!r}])
sys.exit(3 if channel.receive() == [{{"t": "ready"}}] and process.wait() == 0 else 1)
"""


@pytest.mark.parametrize("closed", ["", "<&-", "<&- >&-", "<&- >&- 2>&-", "2>&-"])
def test_closed_standard_files_cost_no_child_its_channel(closed: str) -> None:
    ended = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, SUPERVISOR],
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 3
