"""The index that a partitioned queue's claims use when most of its keys are full (rule 14).

Optional: without it the ranked prefix is widened, which reads the backlog when few rows of it
can be admitted. One index a queue and field, built by ``migrate`` for the queues it is told of.
It holds the key's 64-bit hash: an index entry has at most some 2,700 bytes, and an insert, also
another SDK's, must not fail because a key is longer.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import psycopg
from psycopg import sql

from django_belay.contract.admission import Partition

PREFIX: Final = "belay_x_jobs_part_"


def index_name(queue: str, partition: Partition) -> str:
    """The same for the same queue and field, whatever characters they hold."""
    text = "\0".join(("hashtextextended", queue, partition.column, partition.key))
    return PREFIX + hashlib.sha256(text.encode()).hexdigest()[:16]


def index_script(queue: str, partition: Partition, context: psycopg.Connection[Any]) -> str:
    """The statement that makes the index; its expression is the one that claims rank by."""
    return (
        sql.SQL(
            "CREATE INDEX {name}\n"
            "  ON belay_jobs (hashtextextended(COALESCE({column} ->> {key}, ''), 0),"
            " priority, ready_at NULLS FIRST, id)\n"
            "  WHERE state = 'ready' AND queue = {queue}"
        )
        .format(
            name=sql.Identifier(index_name(queue, partition)),
            column=sql.Identifier(partition.column),
            key=sql.Literal(partition.key),
            queue=sql.Literal(queue),
        )
        .as_string(context)
    )
