"""What stands in place of a payload that was erased; the same in SQL (``erase_payload.sql``)."""

from __future__ import annotations

from typing import Any, Final

from django_belay.exceptions import PayloadErased

ERASED: Final = {"$erased": True}
#: As an envelope.
ERASED_TEXT: Final = '{"$erased":true}'


def refuse_erased(job_id: int, input: Any) -> None:
    """Keep a job from running on what was left of its payload.

    Raises:
        PayloadErased: Its input was erased, and its steps' values with it.
    """
    if input == ERASED:
        raise PayloadErased(
            f"the payload of job {job_id} was erased: neither its input nor its steps' values are there any "
            "more; enqueue a new job"
        )
