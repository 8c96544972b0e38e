"""What the commands that send signals share: their payload, their target, their answer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError, CommandParser, OutputWrapper

from django_belay.contract.json_value import JsonError, loads
from django_belay.deferred import Deferred
from django_belay.management import report


def add_payload(parser: CommandParser) -> None:
    """``PAYLOAD``."""
    parser.add_argument(
        "payload",
        nargs="?",
        default="null",
        metavar="JSON",
        help="'-' reads standard input; null if left out.",
    )


def target_of(text: str) -> int | str:
    """A job's id where the text is a number, else a scope."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else text


def deliver(
    out: OutputWrapper, options: dict[str, Any], send: Callable[[Any], list[int] | Deferred[list[int]]]
) -> None:
    """Send the payload and say whom it woke.

    Raises:
        CommandError: The payload is no JSON.
    """
    text = sys.stdin.read() if options["payload"] == "-" else options["payload"]
    try:
        payload = loads(text.encode("utf-8", "surrogatepass"))
    except JsonError as error:
        raise CommandError(f"payload: {error}; give JSON, a text in quotes: '\"yes\"'") from None
    answer = send(payload)
    woken = [] if isinstance(answer, Deferred) else answer
    if options["format"] != "text":
        out.write(report.dump({"woken": woken}))
    elif woken:
        out.write(f"woke {', '.join(map(str, woken))}")
    else:
        out.write("stored; nobody waits for it now")
