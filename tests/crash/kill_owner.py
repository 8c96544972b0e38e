"""Run as a process: owns a store, appends large batches without pause, says what is acknowledged.

python kill_owner.py STORE [SCRIBE_PID_FILE]
"""

from __future__ import annotations

import sys
from pathlib import Path

from django_belay.storage.journal.files.journal import JournalOptions, open_journal
from django_belay.storage.journal.files.pen import ScribePen
from django_belay.storage.journal.format.definition import define_job
from django_belay.storage.journal.format.event_v1 import Inserted

BATCH = 400


def main() -> None:
    options = JournalOptions(
        durability="write", writer="scribe", rotation_target_bytes=600_000, reserve_bytes=0
    )
    definition = define_job(worker_key="w", args={"text": "x" * 300})
    with open_journal(sys.argv[1], options) as journal:
        assert isinstance(journal.pen, ScribePen)
        Path(sys.argv[2]).write_text(str(journal.pen.pid))
        number = journal.recovered.records
        while True:
            items = []
            order = journal.state.next_order
            for step in range(BATCH):
                number += 1
                items.append(
                    Inserted(
                        job_id=number.to_bytes(16), at=5, definition=definition, eligible_at=5,
                        availability_order=order + step,
                    )
                )  # fmt: skip
            sequence = journal.append(items)
            sys.stdout.write(f"{sequence}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
