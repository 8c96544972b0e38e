"""Run as a process: owns a journal's directory and serves it until nobody has asked for a while.

python serve_owner.py DIRECTORY DURABILITY IDLE_EXIT_S [SEGMENT_BYTES]
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

from django_belay.exceptions import JournalLocked
from django_belay.storage.journal.serving.owner import Owner, OwnerOptions
from django_belay.storage.journal.serving.place import Place


def main() -> None:
    logging.basicConfig(level="INFO", format="%(asctime)s %(process)d %(levelname)s %(message)s")
    options = OwnerOptions(
        durability="sync" if sys.argv[2] == "sync" else "write",
        validated_filesystem=True,
        idle_exit_s=float(sys.argv[3]),
        segment_bytes=int(sys.argv[4]) if len(sys.argv) > 4 else 1 << 20,
    )
    try:
        owner = Owner.open(Place(Path(sys.argv[1])), options, now=datetime.now(UTC), wait_s=2.0)
    except JournalLocked as error:
        logging.getLogger().info("another owner lives: %s", error)
        return
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: threading.Thread(target=stop.set).start())
    with owner:
        owner.start()
        owner.join_until_idle(stop)


if __name__ == "__main__":
    main()
