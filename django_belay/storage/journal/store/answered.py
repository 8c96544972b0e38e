"""Answers that stand in the journal, so that the next owner knows what a request that comes again has done.

An answer is written in the same operation record as what it speaks of. It holds ids and outcomes, not
rows. What the contract's own records say needs none: there an insert is known by its id and an end by
its token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final

from django_belay.contract.job import Standing
from django_belay.storage.base import Applied, Controlled, Inserted, Stale, StepWritten

TABLE: Final = "answers"
#: A client that was not heard of for so long comes back to nothing.
IDLE_MS: Final = 3_600_000

_RECORDS: Final[dict[str, type[Any]]] = {
    one.__name__: one for one in (Applied, Controlled, Inserted, Stale, Standing, StepWritten)
}


@dataclass(slots=True)
class Call:
    """A client's request, while it is applied.

    Attributes:
        client: Its id, which no other client has.
        is_resent: Whether an owner before this one may have applied it, or a part of it.
        parts: How many of its changes were begun: each is one for the disk, and has an answer of its own.
    """

    client: str
    request: int
    is_resent: bool
    parts: int = 0

    def next_key(self) -> str:
        """Where the answer of the change that begins now stands."""
        self.parts += 1
        return f"{self.client}/{self.parts}"


@dataclass(slots=True, frozen=True)
class Known:
    """An answer that was given before."""

    answer: Any


def find(answers: Mapping[str, Mapping[str, Any]], key: str, request: int) -> Known | None:
    """What was answered at this place of this very request."""
    row = answers.get(key)
    return Known(_unpack(row["answer"])) if row is not None and row["request"] == request else None


def row_of(request: int, answer: Any, *, at: int) -> dict[str, Any]:
    """The row that says it."""
    return {"request": request, "answer": _pack(answer), "at": at}


def idle_keys(answers: Mapping[str, Mapping[str, Any]], *, now_ms: int) -> list[str]:
    """Answers that nobody will ask for again."""
    return [key for key, row in answers.items() if row["at"] < now_ms - IDLE_MS]


def _pack(answer: Any) -> Any:
    if is_dataclass(answer):
        name = type(answer).__name__
        if name not in _RECORDS:
            raise TypeError(f"an answer of type {name} is not kept")
        return {"of": name, "is": [_pack(getattr(answer, field.name)) for field in fields(answer)]}
    if isinstance(answer, list):
        return [_pack(one) for one in answer]
    if answer is None or isinstance(answer, bool | int | str):
        return answer
    raise TypeError(f"an answer of type {type(answer).__name__} is not kept")


def _unpack(packed: Any) -> Any:
    if isinstance(packed, dict):
        record = _RECORDS[packed["of"]]
        names = (field.name for field in fields(record))
        return record(**dict(zip(names, map(_unpack, packed["is"]), strict=True)))
    return [_unpack(one) for one in packed] if isinstance(packed, list) else packed
