"""``belay_queues.opts``: what they mean, what is wrong with them, how they are written (§3, rule 2).

The settings' ``QUEUES`` take the same options and are read by the same function. Reading
never raises: rows are written by other SDKs too, and one bad value spoils no other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from django_belay.contract.admission import MAX_COUNT, Limits, Partition, Rate
from django_belay.contract.job import JSON

#: All that a row may hold: an Elixir node stops its queue sync on an unknown key (rule 2).
KEYS: Final = ("limit", "global_limit", "rate", "partition")
BOUND_KEYS: Final = ("min", "max")
RATE_KEYS: Final = ("allowed", "period", "resource", "estimate")

#: The most jobs that one process runs of a queue.
MAX_LIMIT: Final = 10_000
#: A year; a longer window is surely a mistake in the unit.
MAX_PERIOD_S: Final = 366 * 86_400


@dataclass(slots=True, kw_only=True, frozen=True)
class Finding:
    """Something wrong: the keys that lead to it, what was found, what is allowed."""

    path: tuple[str, ...]
    message: str
    hint: str

    def __str__(self) -> str:
        where = ".".join(self.path) or "opts"
        return f"{where} {self.message}. {self.hint}"


@dataclass(slots=True, kw_only=True, frozen=True)
class QueueOpts:
    """Options of one queue; ``None`` is "not said".

    ``limit`` is the least and the most that one process runs at a time.
    """

    limit: tuple[int, int] | None = None
    limits: Limits = field(default_factory=Limits)

    def over(self, base: QueueOpts) -> QueueOpts:
        """These options over others: what is not said here stays as it is there."""
        mine, theirs = self.limits, base.limits
        return QueueOpts(
            limit=base.limit if self.limit is None else self.limit,
            limits=Limits(
                global_limit=theirs.global_limit if mine.global_limit is None else mine.global_limit,
                rate=mine.rate or theirs.rate,
                partition=mine.partition or theirs.partition,
            ),
        )


def parse(opts: object) -> tuple[QueueOpts, list[Finding]]:
    """What opts say, and all that is wrong with them; a bad value counts as not said.

    Contract: §3; rules 2, 4, 13.
    """
    reader = _Reader([])
    values = reader.mapping((), opts)
    reader.only((), values, KEYS)
    found = QueueOpts(
        limit=reader.limit(values.get("limit")),
        limits=Limits(
            global_limit=reader.whole(("global_limit",), values.get("global_limit"), most=MAX_COUNT),
            rate=reader.rate(values.get("rate")),
            partition=reader.partition(values.get("partition")),
        ),
    )
    return found, reader.findings


def to_json(opts: QueueOpts) -> dict[str, JSON]:
    """The JSON object that every SDK reads: what is not said is left out.

    Contract: §3, opts.
    """
    return dict(_items(opts))


def _items(opts: QueueOpts) -> Iterator[tuple[str, JSON]]:
    limits = opts.limits
    if opts.limit is not None:
        least, most = opts.limit
        yield "limit", most if least == most else {"min": least, "max": most}
    if limits.global_limit is not None:
        yield "global_limit", limits.global_limit
    if limits.rate is not None:
        rate: dict[str, JSON] = {"allowed": limits.rate.allowed, "period": limits.rate.period_s}
        if limits.rate.resource is not None:
            rate["resource"] = limits.rate.resource
        yield "rate", {**rate, "estimate": limits.rate.estimate}
    if limits.partition is not None:
        yield "partition", [limits.partition.column, limits.partition.key]


@dataclass(slots=True, frozen=True)
class _Reader:
    """Reads values one by one and notes what does not fit."""

    findings: list[Finding]

    def refuse(self, path: tuple[str, ...], message: str, hint: str) -> None:
        self.findings.append(Finding(path=path, message=message, hint=hint))

    def mapping(self, path: tuple[str, ...], value: object) -> Mapping[str, Any]:
        if isinstance(value, Mapping):
            return value
        self.refuse(path, f"is {_shown(value)}", "Make it an object.")
        return {}

    def only(self, path: tuple[str, ...], values: Mapping[str, Any], known: Collection[str]) -> None:
        for key in values:
            if key not in known:
                self.refuse((*path, str(key)), "is no known key", f"Known here: {', '.join(known)}.")

    def whole(self, path: tuple[str, ...], value: object, *, least: int = 1, most: int) -> int | None:
        """A whole number in a range; ``None`` for one that is not given or does not fit."""
        if value is None:
            return None
        if type(value) is int and least <= value <= most:
            return value
        self.refuse(path, f"is {_shown(value)}", f"Give a whole number from {least} to {most:,}.")
        return None

    def limit(self, value: object) -> tuple[int, int] | None:
        if not isinstance(value, Mapping):
            limit = self.whole(("limit",), value, most=MAX_LIMIT)
            return None if limit is None else (limit, limit)
        self.only(("limit",), value, BOUND_KEYS)
        least = self.whole(("limit", "min"), value.get("min", 1), most=MAX_LIMIT)
        most = self.whole(("limit", "max"), value.get("max", 10), most=MAX_LIMIT)
        if least is None or most is None:
            return None
        if least > most:
            self.refuse(("limit", "min"), f"is {least}, above max {most}", "Give a min of at most max.")
            return None
        return least, most

    def rate(self, value: object) -> Rate | None:
        if value is None:
            return None
        before = len(self.findings)
        values = self.mapping(("rate",), value)
        self.only(("rate",), values, RATE_KEYS)
        allowed = self._needed(values, "allowed", least=0, most=MAX_COUNT)
        period = self._needed(
            {**values, "period": _whole_seconds(values.get("period"))}, "period", most=MAX_PERIOD_S
        )
        estimate = self.whole(("rate", "estimate"), values.get("estimate", 1), least=0, most=MAX_COUNT)
        resource = self._resource(values.get("resource"))
        if allowed is None or period is None or estimate is None or len(self.findings) > before:
            return None
        return replace(Rate(allowed=allowed, period_s=period, estimate=estimate), resource=resource)

    def _needed(self, values: Mapping[str, Any], key: str, *, least: int = 1, most: int) -> int | None:
        if values.get(key) is None:
            self.refuse(
                ("rate", key), "is missing", "A rate needs allowed (units) and period (whole seconds)."
            )
            return None
        return self.whole(("rate", key), values[key], least=least, most=most)

    def _resource(self, value: object) -> str | None:
        if value is None or (isinstance(value, str) and _is_storable(value)):
            return value
        self.refuse(("rate", "resource"), f"is {_shown(value)}", "Give a text that is not empty.")
        return None

    def partition(self, value: object) -> Partition | None:
        match value:
            case None:
                return None
            case ("input" | "meta" as column, str(key)) if _is_storable(key):
                return Partition(column=column, key=key)
        self.refuse(("partition",), f"is {_shown(value)}", 'Give ["input", key] or ["meta", key].')
        return None


def _is_storable(text: str) -> bool:
    """Not empty, and neither a NUL nor a lone surrogate in it."""
    return bool(text) and "\0" not in text and text == text.encode("utf-8", "replace").decode()


def _whole_seconds(value: object) -> object:
    """A ``timedelta`` or ``60.0`` as 60; anything else as it is."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    return int(seconds) if isinstance(seconds, float) and seconds.is_integer() else seconds


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
