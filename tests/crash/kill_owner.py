"""Run as a process: owns a store, appends large batches without pause, says what is acknowledged.

python kill_owner.py STORE SCRIBE_PID_FILE [RECORD_BYTES]

Without ``RECORD_BYTES`` a batch is many small records, written in pieces that end where a record
does; with it a batch is one record of about that size, written by one call; all of them are equally long.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from django_belay.storage.journal.files.journal import Journal, JournalOptions, open_journal
from django_belay.storage.journal.files.pen import ScribePen
from django_belay.storage.journal.format.definition import define_job
from django_belay.storage.journal.format.event_v1 import Inserted
from django_belay.storage.journal.format.extension import Operation, encode_body
from django_belay.storage.journal.format.pair import Payload

BATCH = 400
SMALL = define_job(worker_key="w", args={"text": "x" * 300})


def small_records(journal: Journal, first: int) -> Sequence[Payload]:
    order = journal.state.next_order
    return [
        Inserted(
            job_id=(first + step).to_bytes(16), at=5, definition=SMALL, eligible_at=5,
            availability_order=order + step,
        )
        for step in range(BATCH)
    ]  # fmt: skip


def large_record(number: int, size: int) -> Sequence[Payload]:
    row = {"number": f"{number:08}", "fill": "x" * size}
    effects = encode_body({"tables": {"events": {"latest": row}}})
    return [Operation(at=5, client="c", effects=effects, op="append_event", request=number)]


def main() -> None:
    size = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    options = JournalOptions(
        durability="write",
        writer="scribe",
        rotation_target_bytes=1 << 30 if size else 600_000,
        reserve_bytes=0,
    )
    with open_journal(sys.argv[1], options) as journal:
        assert isinstance(journal.pen, ScribePen)
        Path(sys.argv[2]).write_text(str(journal.pen.pid))
        number = journal.recovered.records
        while True:
            items = large_record(number + 1, size) if size else small_records(journal, number + 1)
            number = journal.append(items)
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
