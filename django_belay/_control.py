"""What can be done to a job by its id, and reading it; public through :mod:`django_belay.client`.

What joins the caller's transaction, and how, is rule 10's: inside ``atomic()`` a
signal's row joins and its wake follows the commit; cancel and retry follow the commit
and return :class:`~django_belay.deferred.Deferred`. ``join=True`` does them in the
caller's transaction, for those who know: it holds the contract's locks until it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from django_belay import conf
from django_belay.contract.job import JSON, Event, Job, Signal, Step
from django_belay.contract.json_value import dump_jsonb
from django_belay.contract.names import STEER_SIGNAL, is_reserved, job_scope
from django_belay.db import storage_for_client
from django_belay.deferred import Deferred, JoiningDeferred
from django_belay.exceptions import ConfigurationError, InvalidInput, JobNotFound, PayloadTooLarge
from django_belay.storage.base import Controlled

T = TypeVar("T")

MAX_TEXT = 1_000
#: Of a scope and of a signal's name: both stand in one index entry, which holds 2,704 bytes.
MAX_KEY_BYTES = 1_000


def get_row(job_id: int) -> Job:
    """The row as it is now, in the caller's transaction.

    Raises:
        JobNotFound: No job has this id.
    """
    return storage_for_client().storage.get_job(check_id(job_id))


def get_steps(job_id: int) -> list[Step]:
    """The journaled steps in their order, values encoded."""
    return storage_for_client().storage.get_steps(check_id(job_id))


def get_events(job_id: int, *, after: int = 0, limit: int = 1000) -> list[Event]:
    """The event stream from the entry after ``after`` on."""
    check_id(job_id)
    check_number("after", after, least=-(2**63), most=2**63 - 1)
    check_number("limit", limit, least=0, most=2**31 - 1)
    return storage_for_client().storage.list_events(job_id, after=after, limit=limit)


def cancel(
    job_id: int, reason: str = "", *, tree: bool = False, join: bool = False
) -> Controlled | Deferred[Controlled]:
    """Cancel a job: at once, or at its next step boundary when it runs.

    Args:
        reason: Goes into the job's ``errors``.
        tree: Cancel its descendants that have not ended, too.
        join: Inside ``atomic()``, do it now and in that transaction.

    Returns:
        What was done; a job that has ended already is left alone, with the reason why.
        Inside ``atomic()`` a ``Deferred`` of it, done after the commit.

    Raises:
        JobNotFound: No job has this id.

    Contract: §8.6; rules 10, 19.
    """
    check_id(job_id)
    check_text("reason", reason)

    def work() -> Controlled:
        storage = storage_for_client().storage
        answers = storage.request_cancel(job_id, reason=reason or "cancelled", tree=tree, now=_now())
        return _found(answers[0])

    return after_commit(work, what=f"cancelling job {job_id}", join=join)


def retry(job_id: int, *, join: bool = False) -> Controlled | Deferred[Controlled]:
    """Run a failed or cancelled job again, with at least one more attempt.

    Returns:
        As :func:`cancel`; done is ``False`` where the job has not ended, has succeeded,
        or another job holds its unique key.

    Contract: §8.6; rules 9, 10, 34.
    """
    check_id(job_id)
    return after_commit(
        lambda: _found(storage_for_client().storage.retry(job_id, now=_now())),
        what=f"retrying job {job_id}",
        join=join,
    )


def signal(
    target: int | str, name: str, payload: JSON = None, *, join: bool = False
) -> list[int] | Deferred[list[int]]:
    """Put a signal into an inbox and wake who waits for it; the latest payload of a name stays.

    Args:
        target: A job's id, or a scope such as ``wf:<workflow id>`` or one of your own.
        payload: JSON; the waiting job gets it.

    Returns:
        Ids of the jobs woken. Inside ``atomic()`` the signal's row is part of that
        transaction and a ``Deferred`` of the ids is returned; on the journal the row, too, follows
        the commit.

    Raises:
        JobNotFound: ``target`` is the id of no job.
        InvalidInput: The payload cannot be stored; the message has its path.
        PayloadTooLarge: It is over ``MAX_SIGNAL_BYTES``.

    Contract: §8.1; rules 10, 23, 28.
    """
    if isinstance(name, str) and is_reserved(name):
        raise InvalidInput("names that start with $ belong to the engine; choose another", path="name")
    return _deliver(target, name, payload, join=join)


def steer(job_id: int, payload: JSON, *, join: bool = False) -> list[int] | Deferred[list[int]]:
    """Give a job guidance that its ``ctx.steering()`` reads; as :func:`signal`."""
    return _deliver(check_id(job_id), STEER_SIGNAL, payload, join=join)


def clear_signal(target: int | str, name: str) -> bool | Deferred[bool]:
    """Remove a signal from an inbox, in the caller's transaction; whether there was one.

    Args:
        target: As of :func:`signal`. The name may be ``$steer``, for guidance that no longer holds.

    Returns:
        On the journal, inside ``atomic()``, a ``Deferred``: it happens after the commit.

    Contract: §8.1.
    """
    scope = _scope_of(target)
    if not check_key("name", name):
        raise InvalidInput("is empty", path="name")
    if storage_for_client().storage.capabilities.transactional_enqueue:
        return storage_for_client().storage.clear_signal(scope, name)
    return after_commit(
        lambda: storage_for_client().storage.clear_signal(scope, name),
        what=f"clearing signal {name!r}",
        joins=True,
    )


def signals(target: int | str) -> list[Signal]:
    """What is in an inbox, by name; ``target`` as of :func:`signal`."""
    return storage_for_client().storage.list_signals(_scope_of(target))


def _scope_of(target: int | str) -> str:
    scope = check_key("scope", target) if isinstance(target, str) else job_scope(check_id(target))
    if not scope:
        raise InvalidInput("is empty", path="scope")
    return scope


def _deliver(target: int | str, name: str, payload: JSON, *, join: bool) -> list[int] | Deferred[list[int]]:
    scope = _scope_of(target)
    if not check_key("name", name):
        raise InvalidInput("is empty", path="name")
    _check_payload(payload)
    to_job = not isinstance(target, str)

    def put() -> list[int]:
        return storage_for_client().storage.put_signal(scope, name, payload, to_job=to_job, now=_now())

    found = storage_for_client()
    if not found.storage.capabilities.transactional_enqueue:
        return after_commit(put, what=f"sending signal {name!r}", join=join, joins=True)
    if join or not found.session.is_in_callers_transaction():
        return put()
    found.storage.write_signal(scope, name, payload, to_job=to_job, now=_now())
    return Deferred.until_commit(
        lambda: storage_for_client().storage.wake_awaiting(scope, name, now=_now()),
        using=found.session.alias,
        what=f"waking who waits for signal {name!r}",
    )


def _check_payload(payload: JSON) -> None:
    found = conf.get()
    data = dump_jsonb(payload, path="payload", max_depth=found.max_depth)
    if len(data) > found.max_signal_bytes:
        raise PayloadTooLarge(
            "payload", size=len(data), limit=found.max_signal_bytes, setting='BELAY["MAX_SIGNAL_BYTES"]'
        )


def after_commit(
    work: Callable[[], T], *, what: str, join: bool = False, joins: bool = False
) -> T | Deferred[T]:
    """Do it now, or after the commit where the caller has a transaction open (rule 10).

    Args:
        join: Do it now and in that transaction.
        joins: It would be part of the transaction where the storage is in that database.

    Raises:
        ConfigurationError: With ``join``, the storage is in no database that has transactions.
    """
    found = storage_for_client()
    if not found.session.is_in_callers_transaction():
        return work()
    if join and found.storage.capabilities.transactional_enqueue:
        return work()
    if join:
        raise ConfigurationError(
            f"{what}: join=True does it in the caller's transaction, and the journal takes part in none. "
            "Leave join out, and it is done after the commit; or leave the atomic() block"
        )
    deferred = JoiningDeferred if joins else Deferred
    return deferred.until_commit(work, using=found.session.alias, what=what)


def _found(answer: Controlled) -> Controlled:
    if answer.state is None:
        raise JobNotFound(answer.job_id)
    return answer


def check_id(job_id: int) -> int:
    """An id that a ``bigint`` holds.

    Raises:
        InvalidInput: It is none.
    """
    if type(job_id) is not int or not 0 < job_id < 2**63:
        raise InvalidInput(f"is {job_id!r:.60}; an id is a whole number from 1 to 2**63 - 1", path="job id")
    return job_id


def check_text(what: str, value: str) -> str:
    """A short text that PostgreSQL can store."""
    if not isinstance(value, str):
        raise InvalidInput(f"is a {type(value).__name__}, not text", path=what)
    if len(value) > MAX_TEXT:
        raise InvalidInput(f"has {len(value):,} characters; {MAX_TEXT:,} are allowed", path=what)
    dump_jsonb(value, path=what)
    return value


def check_key(what: str, value: str) -> str:
    """A text that fits into an index."""
    check_text(what, value)
    if (size := len(value.encode())) > MAX_KEY_BYTES:
        raise InvalidInput(f"has {size:,} bytes as UTF-8; {MAX_KEY_BYTES:,} are allowed", path=what)
    return value


def check_number(what: str, value: int, *, least: int, most: int) -> int:
    """A whole number in a range: one that the server refused would spoil the caller's transaction."""
    if type(value) is not int or not least <= value <= most:
        raise InvalidInput(f"is {value!r:.60}; give a whole number from {least:,} to {most:,}", path=what)
    return value


def _now() -> datetime:
    return conf.clock().now()
