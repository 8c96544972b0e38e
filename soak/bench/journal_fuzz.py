"""Coverage-guided fuzzing of every decoder: refuse, or give back the same bytes.

    python -m soak.bench.journal_fuzz [DECODER] [CORPUS …] [-max_total_time=60] [libFuzzer options]

DECODER is one of ``record segment value events current manifest marker catalog`` (default:
all, picked by the input's first byte). Needs ``pip install atheris``. Bounded runs belong in
CI, long ones are run by hand; a crash is written to the working directory by libFuzzer.
"""

from __future__ import annotations

import contextlib
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import atheris  # type: ignore[import-not-found, unused-ignore]

with atheris.instrument_imports(include=["django_belay.storage.journal"]):
    from django_belay.exceptions import JournalError
    from django_belay.storage.journal.files.catalog import decode_catalog
    from django_belay.storage.journal.format.event_v1 import decode_event_v1, encode_event_v1
    from django_belay.storage.journal.format.manifest import decode_manifest, encode_manifest
    from django_belay.storage.journal.format.metadata import (
        decode_current,
        decode_marker,
        encode_current,
        encode_marker,
        sealed,
    )
    from django_belay.storage.journal.format.pair import (
        BASE_PAIRS,
        TAIL_PAIRS,
        decode_payload,
        encode_payload,
    )
    from django_belay.storage.journal.format.record import Incomplete, decode_record, encode_record
    from django_belay.storage.journal.format.scan import SegmentScan
    from django_belay.storage.journal.format.value import decode_value, encode_value

PAIRS = [("base", *pair) for pair in sorted(BASE_PAIRS)] + [("tail", *pair) for pair in sorted(TAIL_PAIRS)]
MEMORY_BASE, MEMORY_FACTOR = 2_000_000, 400


def record(data: bytes) -> None:
    found = decode_record(data)
    if not isinstance(found, Incomplete):
        assert encode_record(found.record) == data[: found.size]


def segment(data: bytes) -> None:
    scan = SegmentScan(
        lambda at, size: data[at : at + size], len(data), expected_id=1, expected_store=None, highest=True
    )
    for _ in scan:
        continue


def value(data: bytes) -> None:
    assert encode_value(decode_value(data)) == data


def events(data: bytes) -> None:
    if not data:
        return
    number = data[0] % (len(PAIRS) + 6)
    if number < 6:
        assert encode_event_v1(decode_event_v1(number + 1, 1, data[1:])) == data[1:]
        return
    place, kind, schema = PAIRS[number - 6]
    assert encode_payload(decode_payload(kind, schema, data[1:], place)) == (kind, schema, data[1:])  # type: ignore[arg-type]


def current(data: bytes) -> None:
    for whole in (data, sealed(data)):
        try:
            assert encode_current(decode_current(whole)) == whole
        except JournalError:
            continue


def marker(data: bytes) -> None:
    for whole in (data, sealed(data)):
        try:
            assert encode_marker(decode_marker(whole)) == whole
        except JournalError:
            continue


def manifest(data: bytes) -> None:
    head = b"TAYM\x01\x00\x00\x00" + len(data).to_bytes(4)
    for whole in (data, sealed(head + data)):
        try:
            assert encode_manifest(decode_manifest(whole)) == whole
        except JournalError:
            continue


def catalog(data: bytes) -> None:
    decode_catalog(data)


DECODERS: dict[str, Callable[[bytes], Any]] = {
    "record": record, "segment": segment, "value": value, "events": events, "current": current,
    "manifest": manifest, "marker": marker, "catalog": catalog,
}  # fmt: skip


def check(decode: Callable[[bytes], Any], data: bytes) -> None:
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    with contextlib.suppress(JournalError):
        decode(data)
    peak = tracemalloc.get_traced_memory()[1] - before
    assert peak < MEMORY_BASE + MEMORY_FACTOR * len(data), f"{peak} bytes for an input of {len(data)}"


def main() -> None:
    arguments = list(sys.argv)
    chosen = DECODERS.get(arguments[1]) if len(arguments) > 1 else None
    if chosen is not None:
        del arguments[1]
    every = list(DECODERS.values())

    def one(data: bytes) -> None:
        if chosen is not None:
            check(chosen, data)
        elif data:
            check(every[data[0] % len(every)], data[1:])

    tracemalloc.start()
    atheris.Setup(arguments, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
