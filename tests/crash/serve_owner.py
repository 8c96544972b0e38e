"""Run as a process: owns a journal's directory and serves it until nobody has asked for a while.

python serve_owner.py DIRECTORY DURABILITY IDLE_EXIT_S [OPTIONS]

OPTIONS is a JSON object; each key may be left out:
    segment_bytes   when a segment is sealed
    hold            a file: as long as it is there, the opening of a store that has records does not go on
    compact         hours that ended jobs are kept; then the store is compacted without pause
    share           which part of the time a compaction works
    file_bytes      no file grows beyond: what a quota does that the file system does not tell of
"""

from __future__ import annotations

import json
import logging
import resource
import signal
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django_belay.exceptions import JournalLocked
from django_belay.storage.journal.serving import upkeep
from django_belay.storage.journal.serving.owner import Owner, OwnerOptions, Progress
from django_belay.storage.journal.serving.place import Place
from django_belay.storage.journal.serving.upkeep import Policy


def main() -> None:
    logging.basicConfig(level="INFO", format="%(asctime)s %(process)d %(levelname)s %(message)s")
    told: dict[str, Any] = json.loads(sys.argv[4]) if len(sys.argv) > 4 else {}
    options = OwnerOptions(
        durability="sync" if sys.argv[2] == "sync" else "write",
        validated_filesystem=True,
        idle_exit_s=float(sys.argv[3]),
        segment_bytes=told.get("segment_bytes", 1 << 20),
        **compacting(told),
    )
    if "file_bytes" in told:
        resource.setrlimit(resource.RLIMIT_FSIZE, (told["file_bytes"], told["file_bytes"]))
    place = Place(Path(sys.argv[1]))
    try:
        owner = Owner.open(place, options, now=datetime.now(UTC), wait_s=2.0, progress=holding(told))
    except JournalLocked as error:
        logging.getLogger().info("another owner lives: %s", error)
        return
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: threading.Thread(target=stop.set).start())
    with owner:
        owner.start()
        owner.join_until_idle(stop)


def holding(told: dict[str, Any]) -> Progress | None:
    """An opening that takes as long as a file is there."""
    if "hold" not in told:
        return None
    file = Path(told["hold"])

    def hold(records: int, done: int, total: int) -> None:
        while file.exists():
            time.sleep(0.01)  # another process decides when

    return hold


def compacting(told: dict[str, Any]) -> dict[str, Any]:
    """Compactions one after the other."""
    if "compact" not in told:
        return {}
    upkeep._LOOK_EVERY_S = 0.01  # type: ignore[misc]
    kept = timedelta(hours=told["compact"])
    return {
        "retention": {"succeeded": kept, "failed": kept, "cancelled": kept},
        "policy": Policy(
            check_every_s=0.0, min_interval_s=0.0, min_bytes=1, growth=0.0, share=told.get("share", 1.0)
        ),
    }


if __name__ == "__main__":
    main()
