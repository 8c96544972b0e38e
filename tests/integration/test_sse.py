"""The server-sent events view: who may read, what is sent, where it goes on, when it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import AnonymousUser, Permission, User
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.middleware.gzip import GZipMiddleware
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.urls import path
from django.utils import timezone

from django_belay.contract.outcome import Succeeded
from django_belay.contrib.sse import event_stream
from django_belay.handles import JobHandle
from django_belay.models import Job
from tests.app import jobs
from tests.integration.worker import run, storage

pytestmark = pytest.mark.django_db
committed = pytest.mark.django_db(transaction=True)

urlpatterns = [
    path("jobs/<int:job_id>/events/", event_stream),
    path("short/<int:job_id>/", event_stream, {"max_duration": 0, "permission": lambda *_: True}),
    path("open/<int:job_id>/", event_stream, {"permission": lambda *_: True}),
]


def ended(*payloads: Any) -> JobHandle:
    """A job that has emitted and ended."""
    job = jobs.echo.enqueue(1)
    for payload in payloads:
        storage().append_event(job.id, payload, now=timezone.now())
    run(Succeeded())
    return job


def stream(
    job: JobHandle | int, *, headers: dict[str, str] | None = None, query: str = "", **options: Any
) -> bytes:
    """What the view sends under WSGI to somebody who may read."""
    request = RequestFactory().get(f"/events/{query}", headers=headers)
    job_id = job if isinstance(job, int) else job.id
    response = event_stream(request, job_id, **{"permission": lambda *_: True, **options})
    assert isinstance(response, StreamingHttpResponse)
    assert not response.is_async
    return b"".join(response.streaming_content)  # type: ignore[arg-type]


def parse(data: bytes) -> list[dict[str, str]]:
    """Frames as a browser reads them: line ends are CR, LF and CRLF."""
    text = data.decode().replace("\r\n", "\n").replace("\r", "\n")
    frames = []
    for block in text.split("\n\n"):
        fields: dict[str, str] = {}
        for line in block.split("\n"):
            name, _, value = line.partition(":")
            if name:
                fields[name] = (fields[name] + "\n" if name in fields else "") + value.removeprefix(" ")
        if fields:
            frames.append(fields)
    return frames


# -- what is sent ----------------------------------------------------------------------


def test_events_are_numbered_frames_and_the_end_is_said() -> None:
    assert parse(stream(ended({"done": 1}, "two"))) == [
        {"retry": "2000"},
        {"id": "1", "data": '{"done":1}'},
        {"id": "2", "data": '"two"'},
        {"event": "end", "data": '{"state":"succeeded"}'},
    ]


@pytest.mark.parametrize("headers", [{"Last-Event-ID": "2"}, None])
def test_a_browser_that_comes_back_goes_on_where_it_was(headers: dict[str, str] | None) -> None:
    sent = parse(stream(ended(1, 2, 3), headers=headers, query="" if headers else "?after=2"))
    assert [frame["data"] for frame in sent if "id" in frame] == ["3"]


@pytest.mark.parametrize("last", ["x", "-1", "1" * 30, "1\u0662"])
def test_a_last_id_that_is_none_is_refused(last: str) -> None:
    request = RequestFactory().get(f"/?after={last}")
    response = event_stream(request, ended().id, permission=lambda *_: True)
    assert isinstance(response, HttpResponse)
    assert response.status_code == 400


HOSTILE = [
    "a\n\ndata: forged\nid: 99\nevent: end\n\n",
    "a\r\n\r\nevent: end\r\rdata: {}\r\n",
    {"k\n\nevent: end": "\u2028\u2029\x85\x0b\x0c"},
    ["\n", {"\r": "\r\n"}],
    "emoji \U0001f600 and é",
]


@pytest.mark.parametrize("payload", HOSTILE)
def test_no_payload_breaks_the_framing(payload: Any) -> None:
    job = ended(payload)
    sent = parse(stream(job))
    assert [sorted(frame) for frame in sent] == [["retry"], ["data", "id"], ["data", "event"]]
    assert json.loads(sent[1]["data"]) == payload


@pytest.mark.postgres
def test_a_payload_that_python_cannot_carry_is_sent_as_opaque() -> None:
    job = ended(1)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE belay_events SET payload = (repeat('[', 2000) || repeat(']', 2000))::jsonb")
    assert "$opaque" in parse(stream(job))[1]["data"]


def test_silence_is_broken_by_heartbeats_and_the_response_is_bounded() -> None:
    job = jobs.echo.enqueue(1)
    sent = stream(job, heartbeat=0, max_duration=0.05, poll=0.001)
    assert sent.startswith(b"retry: 2000\n\n: \n\n")
    assert b"event: end" not in sent
    assert b": \n\n" not in stream(job, heartbeat=60, max_duration=0)


@pytest.mark.postgres
def test_a_job_that_is_pruned_meanwhile_ends_the_stream() -> None:
    job = jobs.echo.enqueue(1)
    response = event_stream(
        RequestFactory().get("/"), job.id, permission=lambda *_: True, heartbeat=0, poll=0.001
    )
    assert isinstance(response, StreamingHttpResponse)
    frames = iter(response.streaming_content)  # type: ignore[arg-type]
    next(frames), next(frames)
    Job._base_manager.filter(pk=job.id)._raw_delete(using="default")
    assert list(frames)[-1] == b'event: end\ndata: {"state":null}\n\n'


def test_headers_keep_proxies_and_middleware_from_holding_events_back() -> None:
    request = RequestFactory().get("/", headers={"Accept-Encoding": "gzip"})
    view = GZipMiddleware(lambda request: event_stream(request, ended(1).id, permission=lambda *_: True))  # type: ignore[arg-type,return-value]
    response = view(request)
    assert response["Content-Type"] == "text/event-stream"
    assert response["Cache-Control"] == "no-store, no-transform"
    assert response["X-Accel-Buffering"] == "no"
    assert response["Content-Encoding"] == "identity"
    assert b"".join(response.streaming_content).startswith(b"retry")  # type: ignore[attr-defined]


# -- who may read ------------------------------------------------------------------------


def asked_by(user: Any, job_id: int, **options: Any) -> Any:
    request = RequestFactory().get("/")
    if user is not None:
        request.user = user
    return event_stream(request, job_id, **options)


def test_the_permission_to_view_jobs_is_asked_for_by_default() -> None:
    job = ended()
    user = User.objects.create_user("reader")
    for nobody in (None, AnonymousUser(), user):
        with pytest.raises(PermissionDenied):
            asked_by(nobody, job.id)
        with pytest.raises(PermissionDenied):  # the same for a job that is not there
            asked_by(nobody, 2**40)
    user.user_permissions.add(Permission.objects.get(codename="view_job", content_type__app_label="belay"))
    reader = User.objects.get(pk=user.pk)
    assert asked_by(reader, job.id).status_code == 200
    with pytest.raises(Http404):
        asked_by(reader, 2**40)
    with pytest.raises(Http404):
        asked_by(reader, 2**64)
    with pytest.raises(PermissionDenied):
        asked_by(reader, job.id, permission="belay.retry_job")


def test_a_callable_decides_by_request_and_job() -> None:
    mine, other = ended(), ended()

    def is_mine(request: Any, job: JobHandle) -> bool:
        return request.path == "/" and job.id == mine.id

    assert asked_by(None, mine.id, permission=is_mine).status_code == 200
    with pytest.raises(PermissionDenied):
        asked_by(None, other.id, permission=is_mine)


def test_only_get_is_answered() -> None:
    response = event_stream(RequestFactory().post("/"), 1, permission=lambda *_: True)
    assert response.status_code == 405


# -- under WSGI and ASGI -----------------------------------------------------------------


@override_settings(ROOT_URLCONF=__name__)
def test_it_is_served_under_wsgi() -> None:
    job = ended("x")
    assert Client().get(f"/jobs/{job.id}/events/").status_code == 403
    response: Any = Client().get(f"/open/{job.id}/")
    assert [frame.get("data") for frame in parse(b"".join(response.streaming_content))] == [
        None, '"x"', '{"state":"succeeded"}',
    ]  # fmt: skip


@committed
@override_settings(ROOT_URLCONF=__name__)
def test_it_is_served_under_asgi_without_holding_a_thread() -> None:
    job = ended("x", "y")
    going = jobs.echo.enqueue(1)

    async def follow() -> None:
        client = AsyncClient()
        assert (await client.get(f"/jobs/{job.id}/events/")).status_code == 403
        response: Any = await client.get(f"/open/{job.id}/", headers={"Last-Event-ID": "1"})
        assert response.is_async
        sent = b"".join([chunk async for chunk in response.streaming_content])
        assert [frame.get("data") for frame in parse(sent)] == [None, '"y"', '{"state":"succeeded"}']
        short: Any = await client.get(f"/short/{going.id}/")
        assert [chunk async for chunk in short.streaming_content] == [b"retry: 2000\n\n"]

    async_to_sync(follow)()


@pytest.mark.django_db
def test_a_permission_of_async_code_is_awaited() -> None:
    handle = jobs.echo.enqueue(1)

    async def nobody(request: Any, job: Any) -> bool:
        return False

    async def everybody(request: Any, job: Any) -> bool:
        return True

    request = RequestFactory().get("/")
    with pytest.raises(PermissionDenied):
        event_stream(request, handle.id, permission=nobody, max_duration=0)
    assert event_stream(request, handle.id, permission=everybody, max_duration=0).status_code == 200
