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


def test_the_working_directory_shadows_no_module(tmp_path: Path) -> None:
    """``python /srv/site/manage.py`` has the site in its path, not where it was started."""
    for name in ("secrets", "queue", "django_belay"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('shadowed')")
    script = tmp_path / "elsewhere" / "manage.py"
    script.parent.mkdir()
    child = f"import secrets, queue{CHILD}"
    script.write_text(
        f"import sys; sys.path.append({str(ROOT)!r})\n{SUPERVISOR.replace(repr(CHILD), repr(child))}"
    )
    ended = subprocess.run([sys.executable, str(script)], cwd=tmp_path, timeout=60, check=False)
    assert ended.returncode == 3
