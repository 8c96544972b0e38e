"""What an owner does with one request: read it, apply it once, say what came of it."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from django_belay.exceptions import StorageError
from django_belay.storage.journal.store.answered import Call
from django_belay.storage.journal.store.served import ServedStore
from django_belay.storage.journal.store.store import JournalStore

from .answers import Answers
from .codec import Unreadable
from .errors import encode_error
from .frames import ANSWER_BYTES, frame
from .handshake import Refused
from .operations import OPERATIONS, Operation

logger = logging.getLogger("django_belay.journal")

DONE: Final = 0
FAILED: Final = 1


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a client.

    Attributes:
        number: 1, 2, 3…: with it the client says that all below are answered.
        is_resent: Whether it was sent before, on a connection that was lost.
    """

    number: int
    operation: Operation
    arguments: dict[str, Any]
    is_resent: bool

    @classmethod
    def read(cls, found: Any) -> Request:
        """Raises ``Unreadable``."""
        match found:
            case [int(number), str(name), list(cells), bool(is_resent)] if number > 0:
                if name not in OPERATIONS:
                    raise Unreadable(f"no operation is called {name!r:.60}")
                operation = OPERATIONS[name]
                return cls(number, operation, operation.decode_call(cells), is_resent)
        raise Unreadable("a request is [number, operation, arguments, whether it is resent]")


class Desk:
    """Applies requests, each once."""

    def __init__(self, store: JournalStore) -> None:
        self._store = ServedStore(store)
        self._answers = Answers()

    def answer(self, client: str, request: Request) -> bytes:
        """The frame to send once it may go.

        Raises:
            Refused: The number is not one that this client may use now.
        """
        last = self._answers.last_request(client)
        if request.number < last:
            raise Refused(f"request {request.number} came after {last}")
        kept = self._answers.find(client, request.number)
        if kept is None:
            kept = self._apply(client, request)
            if not request.operation.is_reading:
                self._answers.keep(client, request.number, kept)
        return _framed(request.number, kept)

    def forget_idle(self) -> None:
        """Forget the answers in the journal that nobody will ask for again."""
        self._store.forget_answers(now=datetime.now(UTC))

    def _apply(self, client: str, request: Request) -> list[Any]:
        operation = request.operation
        call = Call(client, request.number, request.is_resent)
        try:
            with nullcontext() if operation.is_repeatable else self._store.calling(call):
                answer = getattr(self._store, operation.name)(**request.arguments)
        except Exception as error:
            if not isinstance(error, StorageError):
                logger.debug("%s failed", operation.name, exc_info=True)
            return [FAILED, encode_error(error)]
        return [DONE, operation.answer.to_json(answer)]


def _framed(number: int, kept: list[Any]) -> bytes:
    try:
        return frame([number, *kept], limit=ANSWER_BYTES)
    except StorageError as error:
        return frame([number, FAILED, encode_error(error)], limit=ANSWER_BYTES)
