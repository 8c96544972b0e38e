"""A view that streams a job's events to a browser's ``EventSource`` (server-sent events).

::

    path("jobs/<int:job_id>/events/", event_stream, {"permission": "shop.follow_job"})
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import aclosing, closing
from typing import Any, TypeAlias

from asgiref.sync import async_to_sync
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponseBadRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_GET

from django_belay import client
from django_belay.contract.envelope import Opaque
from django_belay.contract.job import JSON, Event
from django_belay.exceptions import InvalidInput, JobNotFound
from django_belay.handles import JobHandle
from django_belay.streams import LAST_POLL_S, Page, apages, pages

#: A permission's name, or a function of the request and the job that says yes or no.
Permission: TypeAlias = str | Callable[[HttpRequest, JobHandle], bool]

HEADERS = {
    "Cache-Control": "no-store, no-transform",
    # GZipMiddleware would hold events back until its buffer is full.
    "Content-Encoding": "identity",
    "X-Accel-Buffering": "no",  # nginx
}
RETRY = b"retry: 2000\n\n"
HEARTBEAT = b": \n\n"


@transaction.non_atomic_requests
@require_GET
def event_stream(
    request: HttpRequest,
    job_id: int,
    *,
    permission: Permission = "belay.view_job",
    heartbeat: float = 15.0,
    max_duration: float = 300.0,
    poll: float = LAST_POLL_S,
) -> HttpResponseBase:
    """The events of a job, each with its ``seq`` as id, and ``event: end`` when the job has ended.

    A browser that reconnects goes on after the ``Last-Event-ID`` that it sends; ``?after=``
    says the same. Under ASGI a stream holds no worker; under WSGI it holds its thread for
    ``max_duration`` at most.

    Args:
        permission: Who may read: a permission's name, or a callable of request and handle.
        heartbeat: Seconds of silence after which a comment is sent, so that proxies keep
            the connection and a closed one is noticed.
        max_duration: Seconds after which the response ends; ``EventSource`` connects again.
        poll: The longest wait between two looks at the table.
    """
    after = _resume_after(request)
    if after is None:
        return HttpResponseBadRequest("Last-Event-ID is no number of an event", content_type="text/plain")
    handle = _permitted(request, job_id, permission)
    clock = _Pulse(heartbeat, max_duration)
    if isinstance(request, ASGIRequest):
        frames: Any = _aframes(apages(handle, after=after, poll=poll), clock)
    else:
        frames = _frames(pages(handle, after=after, poll=poll), clock)
    return StreamingHttpResponse(frames, content_type="text/event-stream", headers=HEADERS)


def _resume_after(request: HttpRequest) -> int | None:
    """The last event that the browser has, 0 for none, ``None`` for nonsense."""
    text = request.headers.get("Last-Event-ID") or request.GET.get("after") or "0"
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def _permitted(request: HttpRequest, job_id: int, permission: Permission) -> JobHandle:
    """The job, for who may see it; who may see none does not learn which ids there are."""
    if isinstance(permission, str):
        user = getattr(request, "user", None)
        if user is None or not user.has_perm(permission):
            raise PermissionDenied
    try:
        handle = client.get(job_id)
    except (JobNotFound, InvalidInput) as error:
        raise Http404(str(error)) from None
    if callable(permission) and not _is_allowed(permission(request, handle)):
        raise PermissionDenied
    return handle


def _is_allowed(answer: Any) -> bool:
    """What a permission says; one of async code is awaited: a coroutine alone is true, and says nothing."""
    if not inspect.isawaitable(answer):
        return bool(answer)

    async def awaited() -> Any:
        return await answer

    return bool(async_to_sync(awaited)())


# -- frames ------------------------------------------------------------------------------


class _Pulse:
    """When a heartbeat is due, and when the response has lasted long enough."""

    def __init__(self, heartbeat: float, max_duration: float) -> None:
        self._heartbeat = heartbeat
        self._ends_at = time.monotonic() + max_duration
        self._silent_since = time.monotonic()

    def frames_of(self, page: Page) -> bytes:
        """What to send for a read: its events, or a heartbeat where one is due."""
        sent = b"".join(frame_of(event) for event in page.events)
        if page.is_last:
            sent += end_frame(page.state)
        elif not sent and time.monotonic() - self._silent_since >= self._heartbeat:
            sent = HEARTBEAT
        if sent:
            self._silent_since = time.monotonic()
        return sent

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._ends_at


def _frames(found: Generator[Page, None, None], clock: _Pulse) -> Iterator[bytes]:
    yield RETRY
    try:
        with closing(found):
            for page in found:
                if sent := clock.frames_of(page):
                    yield sent
                if clock.is_over:
                    return
    except JobNotFound:  # pruned meanwhile
        yield end_frame(None)


async def _aframes(found: AsyncGenerator[Page, None], clock: _Pulse) -> AsyncIterator[bytes]:
    yield RETRY
    try:
        async with aclosing(found):
            async for page in found:
                if sent := clock.frames_of(page):
                    yield sent
                if clock.is_over:
                    return
    except JobNotFound:
        yield end_frame(None)


def frame_of(event: Event) -> bytes:
    """An event as a frame of the stream."""
    return b"id: %d\ndata: %s\n\n" % (event.seq, _json(event.payload))


def end_frame(state: str | None) -> bytes:
    """The last frame: the state in which the job ended, ``null`` where it is gone."""
    return b"event: end\ndata: %s\n\n" % _json({"state": state})


def _json(value: JSON) -> bytes:
    # ASCII escapes leave no line end, which alone could break a frame, and no lone surrogate.
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"), default=_plain).encode("ascii")


def _plain(value: object) -> JSON:
    return value.as_json() if isinstance(value, Opaque) else str(value)
