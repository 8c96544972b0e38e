"""What the reporting commands share: filters, formats, rows as text."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeVar

from django.core.management.base import CommandError, CommandParser, OutputWrapper
from django.utils.dateparse import parse_date, parse_datetime
from django.utils.timezone import is_naive, make_aware

from django_belay import conf
from django_belay.contract import envelope
from django_belay.contract.envelope import Opaque
from django_belay.contract.job import Job
from django_belay.contract.json_value import JsonError, loads
from django_belay.contract.state import STATES
from django_belay.exceptions import BelayError

AnswerT = TypeVar("AnswerT")

FORMATS = ("text", "json", "jsonl")

_AGO = re.compile(r"(\d{1,6})(s|m|h|d|w)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@contextmanager
def command_errors() -> Iterator[None]:
    """This package's errors as a command's."""
    try:
        yield
    except BelayError as error:
        raise CommandError(str(error)) from error


# -- arguments -------------------------------------------------------------------


def add_format(parser: CommandParser) -> None:
    """``--format``."""
    parser.add_argument("--format", choices=FORMATS, default="text", help="jsonl is one JSON line an item.")


def add_filters(parser: CommandParser) -> None:
    """The filters that listing and changing commands take alike."""
    parser.add_argument("--state", action="append", choices=STATES, help="Repeat for several.")
    parser.add_argument("--queue")
    parser.add_argument("--kind")
    parser.add_argument("--workflow", metavar="ID")
    parser.add_argument(
        "--since", metavar="WHEN", help="Inserted since: 2026-05-01, an ISO instant, 90m, 2h, 7d."
    )


def filters(options: Mapping[str, Any]) -> dict[str, Any]:
    """The given filters as :func:`django_belay.client.list_jobs` takes them."""
    given = {
        "states": options["state"],
        "queue": options["queue"],
        "kind": options["kind"],
        "workflow_id": options["workflow"],
        "since": parse_since(options["since"]),
    }
    return {name: value for name, value in given.items() if value is not None}


def parse_since(text: str | None) -> datetime | None:
    """An instant from a date, an ISO instant, or how long ago.

    Raises:
        CommandError: It is none of them.
    """
    if text is None:
        return None
    if (found := _AGO.fullmatch(text)) is not None:
        with suppress(OverflowError):
            return conf.clock().now() - _span(found)
    elif (instant := _instant(text)) is not None:
        return instant
    raise CommandError(
        f"--since {text!r}: give a date, an ISO instant such as 2026-05-01T12:00Z, or 90m, 2h, 7d"
    )


def parse_instant(option: str, text: str) -> datetime:
    """An instant from ``now``, how long from now (``+2h``), a date, or an ISO instant.

    Raises:
        CommandError: It is none of them.
    """
    if text == "now":
        return conf.clock().now()
    if text.startswith("+") and (found := _AGO.fullmatch(text[1:])) is not None:
        with suppress(OverflowError):
            return conf.clock().now() + _span(found)
    elif (instant := _instant(text)) is not None:
        return instant
    raise CommandError(
        f"{option} {text!r}: give now, +90m, +2h, +7d, a date, or an ISO instant such as 2026-05-01T12:00Z"
    )


def _span(found: re.Match[str]) -> timedelta:
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def _instant(text: str) -> datetime | None:
    try:
        instant = parse_datetime(text) or _midnight(parse_date(text))
        if instant is not None:
            return make_aware(instant) if is_naive(instant) else instant.astimezone(UTC)
    except (ValueError, OverflowError):  # no such day, or beyond the calendar
        pass
    return None


def _midnight(day: date | None) -> datetime | None:
    return None if day is None else datetime(day.year, day.month, day.day)


def parse_object(option: str, text: str) -> dict[str, Any]:
    """The JSON object that an option gives.

    Raises:
        CommandError: It is something else; the message starts with the option.
    """
    try:
        value = loads(text.encode("utf-8", "surrogatepass"))
    except JsonError as error:
        raise CommandError(f"{option}: no JSON: {error}") from None
    if not isinstance(value, dict):
        raise CommandError(
            f'{option}: give a JSON object such as {{"order_id": 42}}, not {type(value).__name__}'
        )
    return value


def at_least_one(text: str) -> int:
    """The type of ``--limit``."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


at_least_one.__name__ = "number from 1 on"


# -- values ----------------------------------------------------------------------


def job_facts(job: Job) -> dict[str, Any]:
    """Every wire column by its name, the result decoded."""
    facts = {field.name: getattr(job, field.name) for field in dataclasses.fields(job)}
    facts["result"] = envelope.decode_or_opaque(job.result)
    return facts


def dump(value: Any) -> str:
    """One line of JSON."""
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Opaque):
        return value.as_json()
    if isinstance(value, bytes | memoryview):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, Decimal):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return list(value) if isinstance(value, set | frozenset | tuple) else str(value)


def printable(value: Any) -> str:
    """A value in one line of text; what could steer a terminal is escaped."""
    if value is None:
        return "-"
    if isinstance(value, Decimal):
        text = format(value, "f")
    elif isinstance(value, datetime):
        text = _plain(value)
    else:
        text = value if isinstance(value, str) else dump(value)
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def write_items(
    out: OutputWrapper,
    form: str,
    name: str,
    items: Sequence[Any],
    *,
    facts: Callable[[Any], Any],
    columns: Sequence[str],
    row: Callable[[Any], Sequence[Any]],
    **more: Any,
) -> None:
    """A listing in the form asked for: a table, one object with ``more`` beside, or a line an item."""
    if form == "json":
        out.write(dump({name: [facts(item) for item in items], **more}))
    elif form == "jsonl":
        for item in items:
            out.write(dump(facts(item)))
    else:
        write_table(out, columns, [row(item) for item in items])


def write_answers(
    out: OutputWrapper,
    form: str,
    name: str,
    answers: Iterable[AnswerT],
    *,
    facts: Callable[[AnswerT], dict[str, Any]],
    line: Callable[[AnswerT], str],
) -> list[AnswerT]:
    """What became of each item, written as it comes, and the counts; ``what`` in the facts says "skipped".

    What was done before an interruption is seen to be done.
    """
    written: list[AnswerT] = []
    try:
        for answer in answers:
            written.append(answer)
            if form == "jsonl":
                out.write(dump(facts(answer)))
            elif form == "text":
                out.write(line(answer))
    finally:
        told = [facts(answer) for answer in written]
        skipped = sum(one["what"] == "skipped" for one in told)
        if form == "json":
            out.write(dump({name: told, "done": len(told) - skipped, "skipped": skipped}))
        elif form == "text":
            word = "would be done" if any(one["what"] == "would be done" for one in told) else "done"
            out.write(f"{len(told) - skipped} {word}, {skipped} skipped")
    return written


def write_table(out: OutputWrapper, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Rows under aligned headings."""
    shown = [list(columns), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        out.write(line.rstrip())
