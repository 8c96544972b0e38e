"""Payloads: exact maps, rules in their order, and a fast path that decides nothing by itself."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_belay.exceptions import JournalError
from django_belay.storage.journal.format.definition import define_job, definition_of
from django_belay.storage.journal.format.event_v1 import Available, Inserted, decode_event_v1, encode_event_v1
from django_belay.storage.journal.format.event_v2 import decode_event_v2, encode_event_v2
from django_belay.storage.journal.format.extension import (
    Row,
    decode_body,
    decode_extension,
    encode_body,
    encode_extension,
)
from django_belay.storage.journal.format.limits import READING, ValueLimits
from django_belay.storage.journal.format.mutation import decode_mutation, encode_mutation
from django_belay.storage.journal.format.pair import decode_payload, encode_payload
from django_belay.storage.journal.format.snapshot import Job, decode_snapshot, encode_snapshot
from django_belay.storage.journal.format.value import encode_value
from django_belay.storage.journal.state.store_state import StoreState

from .fixtures import DEFINITION, PAYLOADS, SCHEDULE, STATE, T, bare, mutation, snapshot
from .history import History, definition
from .refusals import reason

SLOW = ValueLimits(depth=63)  # one less than the fast path asks for


def outcome(decode: Any, payload: bytes, limits: ValueLimits) -> object:
    try:
        return decode(payload, limits)
    except JournalError as error:
        return error.refusal


@pytest.mark.parametrize("seed", range(3))
def test_fast_and_full_decoding_agree_on_a_history_and_on_damage(seed: int) -> None:
    rng = random.Random(seed)
    history, state = History(seed=seed), StoreState()
    for _ in range(150):
        item = history.draw(state)
        state.apply(item)
        kind, schema, payload = encode_payload(item)
        if (kind, schema) != (8, 1):
            continue
        assert decode_mutation(payload) == decode_mutation(payload, SLOW) == item
        for _ in range(12):
            changed = damage(payload, rng)
            assert outcome(decode_mutation, changed, READING) == outcome(decode_mutation, changed, SLOW)
    for job in state.jobs.values():
        assert isinstance(job, Job)
        payload = encode_snapshot(job)
        assert decode_snapshot(payload) == decode_snapshot(payload, SLOW) == job
        for _ in range(12):
            changed = damage(payload, rng)
            assert outcome(decode_snapshot, changed, READING) == outcome(decode_snapshot, changed, SLOW)


def damage(payload: bytes, rng: random.Random) -> bytes:
    changed = bytearray(payload)
    pick = rng.random()
    at = rng.randrange(len(changed))
    if pick < 0.5:
        changed[at] ^= 1 << rng.randrange(8)
    elif pick < 0.7:
        changed[at] = rng.choice([0, 1, 4, 5, 6, 7, 8, 9, 255])
    elif pick < 0.85:
        del changed[at:]
    else:
        changed[at:at] = rng.randbytes(rng.randrange(1, 10))
    return bytes(changed)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(PAYLOADS)), st.randoms(use_true_random=False))
def test_damaged_payloads_are_refused_or_are_the_only_form(name: str, rng: random.Random) -> None:
    kind, schema, payload = PAYLOADS[name]
    changed = damage(payload, rng)
    decode: Any = {True: decode_event_v1, False: None}[kind <= 6 and schema == 1]
    try:
        if decode is not None:
            assert encode_event_v1(decode_event_v1(kind, schema, changed)) == changed
        else:
            place: Any = "base" if (kind, schema) in {(7, 1), (130, 1)} else "tail"
            place = "base" if (kind, schema) in {(12, 2), (129, 1)} else place
            assert encode_payload(decode_payload(kind, schema, changed, place)) == (kind, schema, changed)
    except JournalError:
        return


KEYS = {name: item for name, item in PAYLOADS.items() if item[1] == 2 or item[0] <= 6 or item[0] >= 128}


@pytest.mark.parametrize("name", sorted(KEYS))
def test_maps_are_exact(name: str) -> None:
    from .by_hand import read_value, value

    kind, schema, payload = PAYLOADS[name]
    content = read_value(payload)
    decode: Any = decode_event_v2 if schema == 2 else decode_event_v1 if kind <= 6 else decode_extension
    want = "invalid_extension" if kind >= 128 else "invalid_event"
    assert reason(decode, kind, schema, value({**content, "zzz": None})) == want
    for key in content:
        assert reason(decode, kind, schema, value({k: v for k, v in content.items() if k != key})) == want
        if key not in ("result", "active_job_id", "cancelled_at", "last_at"):
            assert reason(decode, kind, schema, value({**content, key: 1.0})) == want


@pytest.mark.parametrize(
    ("payload", "name"),
    [
        (b"", "invalid_mutation"),
        (bytes(40), "invalid_mutation"),
        (mutation(7, 1), "mutation_kind"),
        (mutation(3, 2, attempt=1, cycle_token=1)[:-1], "truncated_value"),
        (bytes(16) + mutation(3, 2, attempt=1, cycle_token=1)[16:], "job_id"),
        (mutation(1, 1, availability_order=1, definition=DEFINITION, eligible_at=T), "revision"),
        (mutation(3, 0, attempt=1, cycle_token=1), "revision"),
        (
            mutation(3, 2)[:25] + struct.pack(">QQ", 9, T) + encode_value({"attempt": 1, "cycle_token": 1}),
            "revision",
        ),
        (mutation(3, 2)[:33] + struct.pack(">Q", 2**63) + encode_value({}), "timestamp"),
        (mutation(3, 2, attempt=1), "mutation_keys"),
        (mutation(3, 2, attempt=1, cycle_token=1, availability_order=1), "mutation_keys"),
        (mutation(2, 1, availability_order=None, due_at=T), "availability_order"),
        (mutation(2, 1, availability_order=0, due_at=T), "availability_order"),
        (
            mutation(1, 0, availability_order=None, definition=DEFINITION, eligible_at=T + 1),
            "availability_order",
        ),
        (
            mutation(1, 0, availability_order=1, definition=DEFINITION, eligible_at=T + 2),
            "availability_order",
        ),
        (mutation(1, 0, availability_order=1, definition=DEFINITION, eligible_at=T), "invalid_event"),
        (mutation(2, 1, availability_order=1, due_at=T + 3), "invalid_event"),
        (mutation(3, 2, attempt=0, cycle_token=1), "invalid_event"),
        (mutation(3, 2, attempt=65_536, cycle_token=1), "invalid_event"),
        (mutation(5, 2, execution_token=0), "invalid_event"),
        (mutation(6, 2, availability_order=1, mode=2, new_due_at=T + 6), "invalid_event"),
        (mutation(6, 2, availability_order=1, mode=1, new_due_at=T), "invalid_event"),
    ],
)
def test_mutation_refusals_come_in_order(payload: bytes, name: str) -> None:
    assert reason(decode_mutation, payload) == name


@pytest.mark.parametrize("outcome_code", range(-1, 5))
@pytest.mark.parametrize("disposition", range(-1, 4))
@pytest.mark.parametrize("code", [None, *range(9)])
def test_finished_allows_exactly_the_published_combinations(
    outcome_code: int, disposition: int, code: int | None
) -> None:
    allowed = {
        0: ({None}, {0}), 1: ({1, 2, 3, 4, 6}, {1, 2}), 2: ({5}, {1, 2}), 3: ({7}, {1}),
    }.get(outcome_code, (set(), set()))  # fmt: skip
    diagnostic = None if code is None else {"code": code, "version": 1}
    for following in (None, 2):
        payload = bare(
            4, 3, diagnostic=diagnostic, disposition=disposition, execution_token=3, next_attempt=following,
            next_due_at=None if following is None else T, outcome=outcome_code,
        )  # fmt: skip
        good = (
            code in allowed[0] and disposition in allowed[1] and (following is not None) == (disposition == 1)
        )
        if good:
            decode_event_v1(4, 1, payload)
        else:
            assert reason(decode_event_v1, 4, 1, payload) == "invalid_event"


@pytest.mark.parametrize(
    ("changes", "good"),
    [
        ({}, True),
        ({"args": []}, False),
        ({"args": {"x": b"1"}}, False),
        ({"args": {"x": [{"y": b"1"}]}}, False),
        ({"definition_version": 2}, False),
        ({"definition_version": True}, False),
        ({"max_attempts": 0}, False),
        ({"max_attempts": 65_535}, True),
        ({"max_attempts": 65_536}, False),
        ({"queue_key": ""}, False),
        ({"queue_key": "é" * 127}, True),
        ({"queue_key": "é" * 128}, False),
        ({"queue_key": "a\x00"}, False),
        ({"retry_policy": {**DEFINITION["retry_policy"], "cap_ms": 60_001}}, False),
        ({"retry_policy": {**DEFINITION["retry_policy"], "base_ms": 1000.0}}, False),
        ({"scheduled_at": 2**63 - 1}, True),
        ({"scheduled_at": 2**63}, False),
        ({"timeout_ms": 0}, False),
        ({"timeout_ms": 86_400_000}, True),
        ({"timeout_ms": 86_400_001}, False),
        ({"worker_key": 5}, False),
    ],
)
def test_definitions(changes: dict[str, Any], good: bool) -> None:
    value = {**DEFINITION, **changes}
    assert (definition_of(value) is not None) == good
    payload = mutation(1, 0, availability_order=1, definition=value, eligible_at=T + 1)
    if good and value["scheduled_at"] is None:
        found = decode_mutation(payload)
        assert isinstance(found, Inserted)
        assert found.definition.encoded == encode_value(value)
    elif not good:
        assert reason(decode_mutation, payload) == "invalid_event"


def test_defining_a_bad_job_is_refused() -> None:
    assert reason(define_job, worker_key="", args={}) == "definition"


def test_insertion_is_held_to_tighter_limits_than_reading() -> None:
    deep: Any = "x"
    for _ in range(31):
        deep = [deep]
    define_job(worker_key="w", args={"a": "x" * 262_000})
    for args in ({"a": "x" * 262_144}, {"a": deep}, {"a": [0] * 10_000}):
        assert reason(define_job, worker_key="w", args=args) in ("max_insert_args_bytes", "resource_limit")
        value = {**DEFINITION, "args": args}
        assert isinstance(
            decode_mutation(mutation(1, 0, availability_order=1, definition=value, eligible_at=T + 1)),
            Inserted,
        )


@pytest.mark.parametrize(
    ("changes", "prefix", "name"),
    [
        ({"state": "lost"}, (1, 1, None), "snapshot_state"),
        ({"definition": {}}, (1, 1, None), "definition"),
        ({}, (0, 0, None), "revision"),
        ({}, (1, 2, None), "revision"),
        ({"attempt": 4}, (1, 1, None), "attempt"),
        ({"next_attempt": 0}, (1, 1, None), "next_attempt"),
        ({"next_attempt": 4}, (1, 1, None), "next_attempt"),
        ({"inserted_at": None}, (1, 1, None), "timestamp"),
        ({"eligible_at": -1}, (1, 1, None), "timestamp"),
        ({"attempted_at": 2**63}, (1, 1, None), "timestamp"),
        ({"availability_order": 0}, (1, 1, None), "availability_order"),
        ({}, (1, 1, 2), "execution_token"),
        ({"diagnostic": {"code": 8, "version": 1}}, (1, 1, None), "diagnostic"),
        ({"diagnostic": {"code": 1, "version": 2}}, (1, 1, None), "diagnostic"),
        ({"terminal_at": T}, (1, 1, None), "terminal_at"),
        ({"state": "completed", "terminal_at": T}, (1, 1, None), "terminal_at"),
        ({"state": "cancelled", "terminal_at": T, "completed_at": T}, (1, 1, None), "terminal_at"),
        ({"availability_order": None}, (1, 1, None), "state_fields"),
        ({"attempt": 1}, (1, 1, None), "state_fields"),
        ({"state": "scheduled", "availability_order": None}, (2, 1, None), "state_fields"),
        ({"state": "executing", "availability_order": None, "eligible_at": None}, (1, 1, 1), "state_fields"),
        (
            {"state": "retryable", "availability_order": None, "attempt": 1, "attempted_at": T},
            (3, 1, None),
            "state_fields",
        ),
    ],
)
def test_snapshot_refusals_come_in_order(
    changes: dict[str, Any], prefix: tuple[int, int, int | None], name: str
) -> None:
    base = {"state": "available", "availability_order": 9, "eligible_at": T, "next_attempt": 1}
    payload = snapshot(*prefix, **{**base, **changes})
    assert reason(decode_snapshot, payload) == name
    assert reason(decode_snapshot, payload, SLOW) == name


def test_snapshot_prefix() -> None:
    good = PAYLOADS["snapshot-7-1-available"][2]
    assert reason(decode_snapshot, good[:32]) == "invalid_snapshot"
    assert reason(decode_snapshot, good[:32] + b"\x02" + good[33:]) == "execution_token"
    assert reason(decode_snapshot, good[:32] + b"\x01" + bytes(7)) == "invalid_snapshot"
    assert reason(decode_snapshot, good[:32] + b"\x01" + bytes(8) + good[33:]) == "execution_token"
    assert reason(decode_snapshot, bytes(16) + good[16:]) == "job_id"
    assert reason(decode_snapshot, good + b"\x00") == "trailing_bytes"
    assert reason(decode_snapshot, good[:33] + encode_value({})) == "snapshot_keys"


def test_pairs_stay_in_their_place() -> None:
    for name, (kind, schema, payload) in PAYLOADS.items():
        base = (kind, schema) in {(7, 1), (10, 2), (12, 2), (13, 2), (129, 1), (130, 1)}
        tail = (kind, schema) == (8, 1) or schema == 2 or kind in (128, 129, 131)
        for place, legal in (("base", base), ("tail", tail)):
            if legal:
                assert encode_payload(decode_payload(kind, schema, payload, place)) == (kind, schema, payload)  # type: ignore[arg-type]
            else:
                assert reason(decode_payload, kind, schema, payload, place) == "record_profile", name
    assert reason(decode_payload, 8, 3, b"", "tail") == "payload_schema"
    assert reason(decode_payload, 99, 1, b"", "tail") == "record_profile"


def test_dispatch_is_on_the_pair() -> None:
    assert reason(decode_event_v1, 7, 1, b"") == "unknown_event_type"
    assert reason(decode_event_v1, 1, 2, b"") == "unsupported_payload_schema"
    assert reason(decode_event_v2, 14, 2, b"") == "unknown_event_type"
    assert reason(decode_event_v2, 7, 1, b"") == "unsupported_payload_schema"
    assert reason(decode_extension, 132, 1, b"") == "unknown_event_type"
    assert reason(decode_extension, 128, 2, b"") == "unsupported_payload_schema"


@pytest.mark.parametrize(
    "changes",
    [
        {"catch_up": "none"}, {"overlap": "maybe"}, {"expression": ""}, {"expression": 5}, {"kind": "daily"},
        {"kind": "every"}, {"kind": "every", "expression": 0}, {"task": ""}, {"timezone": ""}, {"args": None},
        {"options": {"a": b"1"}}, {"expression": "x" * 129},
    ],
)  # fmt: skip
def test_schedule_definitions(changes: dict[str, Any]) -> None:
    content = {
        **STATE,
        "active_job_ids": [],
        "membership_complete": True,
        "definition": {**SCHEDULE, **changes},
    }
    assert reason(decode_event_v2, 13, 2, encode_value(content)) == "invalid_event"


@pytest.mark.parametrize(
    "changes",
    [
        {"revision": 6}, {"revision": 0, "expected_revision": -1}, {"membership_complete": 1},
        {"active_job_ids": [bytes(16)]}, {"active_job_ids": [b"b" * 16, b"a" * 16]},
        {"active_job_ids": [b"a" * 16, b"a" * 16]}, {"active_job_ids": ["a" * 16]}, {"active_job_ids": None},
        {"registered_at": None}, {"schedule_id": "x" * 129}, {"schedule_id": ""},
    ],
)  # fmt: skip
def test_schedule_states(changes: dict[str, Any]) -> None:
    content = {**STATE, "active_job_ids": [b"a" * 16], "membership_complete": True, **changes}
    assert reason(decode_event_v2, 13, 2, encode_value(content)) == "invalid_event"


def test_encoders_refuse_what_decoders_would() -> None:
    good = Available(job_id=b"j" * 16, expected_revision=1, at=5, due_at=5, availability_order=1)
    encode_mutation(good)
    assert reason(encode_mutation, replace(good, due_at=6)) == "invalid_event"
    assert reason(encode_mutation, replace(good, availability_order=None)) == "availability_order"
    assert reason(encode_mutation, replace(good, expected_revision=True)) == "invalid_event"
    assert reason(encode_event_v1, good) == "invalid_event"
    assert reason(encode_mutation, replace(good, expected_revision=2**64 - 1)) == "revision"
    event = decode_event_v2(9, 2, PAYLOADS["event-9-2-cancelled"][2])
    assert reason(encode_event_v2, replace(event, schedule_id="")) == "invalid_event"
    assert reason(encode_extension, Row(job_id=bytes(16), row=b"{}")) == "invalid_extension"
    assert definition().args["order"] == 42


@pytest.mark.parametrize(
    "body", [b'{"a":"\\ud800"}', b'{"a":"\\udc00\\ud800"}', b'"\xed\xa0\x80"', b'{"a":NaN}', b"[-Infinity]",
             '{"a":1}'.encode("utf-16"), b'\xef\xbb\xbf{"a":1}'],
)  # fmt: skip
def test_bodies_that_could_not_be_written_again_are_refused(body: bytes) -> None:
    assert reason(decode_body, body) == "invalid_extension"


def test_text_that_utf8_cannot_hold_is_refused_before_it_is_written() -> None:
    assert reason(encode_body, {"a": "\ud800"}) == "invalid_extension"
    assert decode_body(b'{"a":"\\ud83d\\ude00"}') == decode_body(encode_body({"a": "\U0001f600"}))
