"""What ``$await:<name>:<n>:until`` holds, so that engine and reconciler read it alike (rules 26, 27)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from django_belay.contract import envelope
from django_belay.contract.job import JSON
from django_belay.contract.names import await_until_step
from django_belay.contract.outcome import iso


def wait_record(
    *, until: datetime | None, newer_than: datetime | None = None, attempt: int | None = None
) -> dict[str, JSON]:
    """The value journaled before the first park of a wait: its deadline, and what it has seen.

    ``attempt`` is the one that journals it: a later run under the same one follows a park.
    """
    record = {
        "until": None if until is None else iso(until),
        "newer_than": None if newer_than is None else iso(newer_than),
    }
    return record if attempt is None else {**record, "attempt": attempt}


def latest_newer_than(name: str, steps: Iterable[tuple[str, bytes | None]]) -> datetime | None:
    """The instant that a payload must be later than to wake the job's current wait on ``name``.

    Args:
        steps: Names and values of journaled steps of the job, others among them; the
            record with the highest n speaks. A foreign one is not interpreted.

    Contract: rules 3, 23, 27.
    """
    numbered = [(n, value) for step, value in steps if (n := _occurrence(name, step)) is not None]
    if not numbered:
        return None
    _, value = max(numbered, key=lambda found: found[0])
    if value is None or value[:1] != b"{":
        return None
    record = envelope.decode_or_opaque(value)
    return instant_of(record.get("newer_than")) if isinstance(record, dict) else None


def _occurrence(name: str, step: str) -> int | None:
    number = step.removeprefix(f"$await:{name}:").removesuffix(":until")
    if not number.isascii() or not number.isdigit() or len(number) > 9:
        return None
    return int(number) if step == await_until_step(name, int(number)) else None


def instant_of(text: JSON) -> datetime | None:
    """The instant that a text of :func:`~django_belay.contract.outcome.iso` names; ``None`` for anything else."""
    try:
        instant = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return instant.astimezone(UTC) if instant.tzinfo is not None else None
