"""Hints on the channel and when to send them: contract §9.2; rule 11."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_belay.contract.notification import Ended, Hint, Poke, PokePolicy, decode_hint, encode_hint

T0 = datetime(2030, 1, 1, tzinfo=UTC)
MOMENT = timedelta(milliseconds=25)


def test_9_2_the_contracts_payloads() -> None:
    assert encode_hint(Poke("mail")) == '{"t":"p","q":"mail"}'
    assert encode_hint(Ended(7)) == '{"t":"r","id":7}'


@given(st.one_of(st.builds(Poke, st.text()), st.builds(Ended, st.integers())))
def test_9_2_a_hint_is_read_back(hint: Hint) -> None:
    assert decode_hint(encode_hint(hint)) == hint


@pytest.mark.parametrize(
    "payload", ["", "{", "[]", "7", '{"t":"p"}', '{"t":"p","q":7}', '{"t":"r","id":"7"}', "[" * 100_000]
)
def test_9_2_anything_else_is_ignored(payload: str) -> None:
    assert decode_hint(payload) is None


@given(st.text())
def test_9_2_no_payload_raises(payload: str) -> None:
    decode_hint(payload)


def test_9_2_foreign_spelling_is_read() -> None:
    assert decode_hint('{ "q": "mail", "v": 2, "t": "p" }') == Poke("mail")


def test_rule_11_auto_pokes_a_queue_once_an_interval() -> None:
    policy = PokePolicy(interval=MOMENT)
    assert policy.due(["b", "a", "b"], now=T0) == ["a", "b"]
    assert policy.due(["a", "c"], now=T0 + MOMENT / 2) == ["c"]
    assert policy.due(["a"], now=T0 + MOMENT) == ["a"]


def test_rule_11_a_clock_set_back_silences_nobody() -> None:
    policy = PokePolicy(interval=MOMENT)
    policy.due(["a"], now=T0)
    assert policy.due(["a"], now=T0 - timedelta(hours=1)) == ["a"]


def test_rule_11_modes_by_queue() -> None:
    policy = PokePolicy(mode="off", by_queue={"a": "always", "b": "auto"})
    for _ in range(2):
        assert policy.due(["a", "c"], now=T0) == ["a"]
    assert policy.due(["b"], now=T0) == ["b"]
    assert policy.due(["b"], now=T0) == []
