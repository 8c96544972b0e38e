"""A Store-v2 reader and encoder written from the format's description alone.

Plain ``struct`` and ``hashlib``; nothing of the package is imported, not even its CRC. It
asserts instead of refusing, is slow, and serves as the second opinion on what the package writes.
"""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

TABLE = []
for _n in range(256):
    _c = _n
    for _ in range(8):
        _c = (_c >> 1) ^ 0x82F63B78 if _c & 1 else _c >> 1
    TABLE.append(_c)


def crc(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register = TABLE[(register ^ byte) & 0xFF] ^ (register >> 8)
    return register ^ 0xFFFFFFFF


assert crc(b"123456789") == 0xE3069283


class Opaque(bytes):
    """A tag-07 value."""


# -- values -------------------------------------------------------------------


def value(item: Any) -> bytes:
    """The canonical encoding."""
    if item is None:
        return b"\x00"
    if item is False:
        return b"\x01"
    if item is True:
        return b"\x02"
    if isinstance(item, int):
        return b"\x03" + struct.pack(">q", item) if item < 0 else b"\x04" + struct.pack(">Q", item)
    if isinstance(item, float):
        return b"\x05" + struct.pack(">d", item)
    if isinstance(item, str):
        body = item.encode()
        return b"\x06" + struct.pack(">I", len(body)) + body
    if isinstance(item, bytes):
        return b"\x07" + struct.pack(">I", len(item)) + item
    if isinstance(item, list | tuple):
        return b"\x08" + struct.pack(">I", len(item)) + b"".join(value(x) for x in item)
    assert isinstance(item, dict)
    pairs = sorted((key.encode(), key) for key in item)
    return (
        b"\x09" + struct.pack(">I", len(pairs)) + b"".join(value(key) + value(item[key]) for _, key in pairs)
    )


def read_value(data: bytes) -> Any:
    item, end = _value_at(data, 0)
    assert end == len(data)
    return item


def _value_at(data: bytes, at: int) -> tuple[Any, int]:
    tag = data[at]
    at += 1
    if tag <= 2:
        return (None, False, True)[tag], at
    if tag in (3, 4, 5):
        return struct.unpack_from({3: ">q", 4: ">Q", 5: ">d"}[tag], data, at)[0], at + 8
    (size,) = struct.unpack_from(">I", data, at)
    at += 4
    if tag in (6, 7):
        body = data[at : at + size]
        assert len(body) == size
        return (body.decode() if tag == 6 else Opaque(body)), at + size
    if tag == 8:
        items = []
        for _ in range(size):
            item, at = _value_at(data, at)
            items.append(item)
        return items, at
    assert tag == 9
    result: dict[str, Any] = {}
    for _ in range(size):
        key, at = _value_at(data, at)
        assert not result or key.encode() > list(result)[-1].encode()
        result[key], at = _value_at(data, at)
    return result, at


# -- frames -------------------------------------------------------------------


def record(kind: int, schema: int, sequence: int, payload: bytes) -> bytes:
    head = struct.pack(">4sBBBBQI", b"TAY\0", 1, kind, 0, schema, sequence, len(payload))
    return head + struct.pack(">I", crc(head)) + payload + struct.pack(">I", crc(head + payload))


def header(segment_id: int, first: int, store: bytes) -> bytes:
    body = struct.pack(">4sBBHQQ16s", b"TAYS", 1, 0, 0, segment_id, first, store)
    return body + struct.pack(">I", crc(body))


def footer(segment_id: int, first: int, count: int, store: bytes, whole: bytes) -> bytes:
    body = struct.pack(
        ">4sBBHQQQQ16sI", b"TAYF", 1, 0, 0, segment_id, first, first + count - 1, count, store, crc(whole)
    )
    return body + struct.pack(">I", crc(body))


def marker(store: bytes) -> bytes:
    body = b"TAY2\x01\0\0\0" + store
    return body + struct.pack(">I", crc(body))


def current(store: bytes, epoch: bytes, manifest_file: bytes) -> bytes:
    body = b"TAYC\x01\0\0\0" + store + epoch + hashlib.sha256(manifest_file).digest()
    return body + struct.pack(">I", crc(body))


def manifest(content: dict[str, Any]) -> bytes:
    body = value(content)
    whole = b"TAYM\x01\0\0\0" + struct.pack(">I", len(body)) + body
    return whole + struct.pack(">I", crc(whole))


def read_segment(
    data: bytes, segment_id: int, store: bytes
) -> tuple[int, list[tuple[int, int, int, bytes]], bool]:
    """First sequence, records (kind, schema, sequence, payload), and whether it is sealed."""
    magic, version, flags, reserved, number, first, owner, check = struct.unpack_from(">4sBBHQQ16sI", data)
    assert (magic, version, flags, reserved) == (b"TAYS", 1, 0, 0)
    assert (number, owner, check) == (segment_id, store, crc(data[:40]))
    at = 44
    records: list[tuple[int, int, int, bytes]] = []
    while at < len(data):
        if data[at : at + 4] == b"TAYF":
            assert data[at:] == footer(segment_id, first, len(records), store, data[:at])
            return first, records, True
        magic, version, kind, flags, schema, sequence, size, check = struct.unpack_from(
            ">4sBBBBQII", data, at
        )
        assert (magic, version, flags) == (b"TAY\0", 1, 0)
        payload = data[at + 24 : at + 24 + size]
        assert data[at : at + 28 + size] == record(kind, schema, sequence, payload)
        assert sequence == first + len(records)
        records.append((kind, schema, sequence, payload))
        at += 28 + size
    return first, records, False


# -- whole stores ---------------------------------------------------------------


def read_store(root: Path) -> dict[str, Any]:
    """Jobs, results, schedules, extended rows and tables, the next sequence and availability order."""
    store = (root / "STORE-V2").read_bytes()[8:24]
    assert (root / "STORE-V2").read_bytes() == marker(store)
    pointer = (root / "CURRENT").read_bytes()
    epoch = pointer[24:40]
    folder = root / "epochs" / f"e-{epoch.hex()}"
    manifest_file = (folder / "MANIFEST").read_bytes()
    assert pointer == current(store, epoch, manifest_file)
    content = read_value(manifest_file[12:-4])
    assert manifest(content) == manifest_file
    assert (content["store_id"], content["epoch_id"]) == (store, epoch)
    bases = content["base_segments"]
    reader = _Reader()
    expected = 1
    files = sorted((folder / "segments").glob("*.tay"))
    for number, file in enumerate(files, start=1):
        assert file.name == f"{number:020d}.tay"
        data = file.read_bytes()
        first, records, sealed = read_segment(data, number, store)
        assert first == expected
        assert sealed or number == len(files)
        in_base = number <= len(bases)
        if in_base:
            assert bases[number - 1] == {
                "bytes": len(data), "digest": hashlib.sha256(data).digest(), "first_sequence": first,
                "id": number, "last_sequence": first + len(records) - 1,
            }  # fmt: skip
        elif number == len(bases) + 1:
            assert (number, first) == (content["tail_segment_id"], content["tail_first_sequence"])
            reader.order = max([*reader.orders, content.get("availability_frontier") or 0, 0])
        for kind, schema, _, payload in records:
            (reader.base if in_base else reader.tail)(kind, schema, payload)
        expected = first + len(records)
    return {
        "jobs": reader.jobs, "results": reader.results, "schedules": reader.schedules,
        "extended": reader.extended, "tables": {name: rows for name, rows in reader.tables.items() if rows},
        "next_sequence": expected, "next_order": reader.order + 1,
    }  # fmt: skip


def pairs_of(root: Path) -> set[tuple[int, int]]:
    """Kind and schema of every record of a store that reads well."""
    read_store(root)
    store = (root / "STORE-V2").read_bytes()[8:24]
    epoch = (root / "CURRENT").read_bytes()[24:40]
    files = sorted((root / "epochs" / f"e-{epoch.hex()}" / "segments").glob("*.tay"))
    records = [
        record
        for n, file in enumerate(files, start=1)
        for record in read_segment(file.read_bytes(), n, store)[1]
    ]
    return {(kind, schema) for kind, schema, _, _ in records}


def body_of(data: bytes) -> Any:
    """The JSON in an extension record: UTF-8, keys sorted, no spaces."""
    content = json.loads(bytes(data).decode())
    again = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert again.encode() == data
    return content


class _Reader:
    """Applies records the way the description says."""

    def __init__(self) -> None:
        self.jobs: dict[bytes, dict[str, Any]] = {}
        self.results: dict[bytes, Any] = {}
        self.schedules: dict[str, dict[str, Any]] = {}
        self.orders: list[int] = []
        self.order = 0
        self.extended: dict[bytes, tuple[int, dict[str, Any]]] = {}
        self.tables: dict[str, dict[str, Any]] = {}
        self.framed: tuple[str, list[tuple[int, int, bytes]]] | None = None

    def base(self, kind: int, schema: int, payload: bytes) -> None:
        if (kind, schema) == (7, 1):
            job_id, revision, cycle, present = struct.unpack_from(">16sQQB", payload)
            token = struct.unpack_from(">Q", payload, 33)[0] if present else None
            body = read_value(payload[41 if present else 33 :])
            assert not self.jobs or job_id > max(self.jobs)
            if body["availability_order"] is not None:
                self.orders.append(body["availability_order"])
            self.jobs[job_id] = {**body, "revision": revision, "cycle": cycle, "execution": token}
        elif (kind, schema) == (13, 2):
            self._schedule(read_value(payload))
        elif (kind, schema) == (129, 1):
            body = read_value(payload)
            assert body["job_id"] not in self.jobs
            assert not self.extended or body["job_id"] > max(self.extended)
            row = self._row(body)
            if row.get("order") is not None:
                self.orders.append(row["order"])
        elif (kind, schema) == (130, 1):
            body = read_value(payload)
            table = self.tables.setdefault(body["table"], {})
            for key, row in body_of(body["rows"]):
                assert not table or key > max(table)
                table[key] = row
        else:
            assert (kind, schema) == (10, 2)
            self._result(read_value(payload))

    def tail(self, kind: int, schema: int, payload: bytes) -> None:
        if kind != 131:
            if self.framed is None:
                self._apply(kind, schema, payload)
            else:
                self.framed[1].append((kind, schema, payload))
            return
        assert schema == 1
        body = read_value(payload)
        framed, self.framed = self.framed, None
        if body["mark"] == "begin":
            assert framed is None
            self.framed = body["operation"], []
            return
        assert framed is not None
        assert framed[0] == body["operation"]
        if body["mark"] == "commit":
            for item in framed[1]:
                self._apply(*item)
        else:
            assert body["mark"] == "abort"

    def _row(self, body: dict[str, Any]) -> dict[str, Any]:
        row: dict[str, Any] = body_of(body["row"])
        self.extended[bytes(body["job_id"])] = row.pop("revision"), row
        return row

    def _operation(self, body: dict[str, Any]) -> None:
        effects = body_of(body["effects"])
        for name, effect in effects.get("jobs", {}).items():
            job_id = bytes.fromhex(name)
            assert job_id not in self.jobs
            if effect is None:
                del self.extended[job_id]
                continue
            revision, row = self.extended.get(job_id, (0, {}))
            assert effect["revision"] > revision
            self.extended[job_id] = effect["revision"], {**row, **effect["set"]}
            self.order = max(self.order, self.extended[job_id][1].get("order") or 0)
        for name, changes in effects.get("tables", {}).items():
            table = self.tables.setdefault(name, {})
            for key, row in changes.items():
                if row is None:
                    table.pop(key, None)
                else:
                    table[key] = row

    def _apply(self, kind: int, schema: int, payload: bytes) -> None:
        if (kind, schema) == (8, 1):
            job_id, change, before, after, at = struct.unpack_from(">16sBQQQ", payload)
            body = read_value(payload[41:])
            assert after == before + 1
            order = body.get("availability_order")
            if order is not None:
                assert order == self.order + 1
                self.order = order
            self._change(job_id, change, before, at, body)
            return
        body = read_value(payload)
        if kind in (128, 129):
            assert schema == 1
            if kind == 128:
                self._operation(body)
            else:
                held = self.jobs.pop(bytes(body["job_id"]))
                self.results.pop(bytes(body["job_id"]), None)
                self._row(body)
                assert self.extended[bytes(body["job_id"])][0] == held["revision"]
            return
        if kind == 10:
            self._result(body)
            return
        name = body["schedule_id"]
        held = self.schedules.get(name, {"revision": 0})
        assert body["expected_revision"] == held["revision"]
        if kind == 13:
            self._schedule(body)
        elif kind == 9:
            held.update(revision=held["revision"] + 1, cancelled_at=body["at"])
        else:
            assert kind == 11
            assert held["next_at"] == body["due_at"]
            members = set(held["members"]) | ({body["active_job_id"]} - {None})
            held.update(
                revision=held["revision"] + 1,
                last_at=body["due_at"],
                next_at=body["next_at"],
                members=members,
            )

    def _schedule(self, body: dict[str, Any]) -> None:
        self.schedules[body["schedule_id"]] = {
            "revision": body["revision"], "next_at": body["next_at"], "last_at": body["last_at"],
            "cancelled_at": body["cancelled_at"], "members": set(body["active_job_ids"]),
        }  # fmt: skip

    def _result(self, body: dict[str, Any]) -> None:
        job = self.jobs[body["job_id"]]
        assert (job["state"], job["revision"]) == ("completed", body["expected_revision"])
        self.results[bytes(body["job_id"])] = body["result"]

    def _change(self, job_id: bytes, change: int, before: int, at: int, body: dict[str, Any]) -> None:
        if change == 1:
            assert job_id not in self.jobs
            self.jobs[job_id] = {
                "attempt": 0, "next_attempt": 1, "cycle": 1, "revision": 1, "execution": None,
                "inserted_at": at, "attempted_at": None, "completed_at": None, "terminal_at": None,
                "diagnostic": None, "definition": body["definition"], "eligible_at": body["eligible_at"],
                "availability_order": body["availability_order"],
                "state": "available" if body["eligible_at"] <= at else "scheduled",
            }  # fmt: skip
            return
        job = self.jobs[job_id]
        assert job["revision"] == before
        job["revision"] += 1
        job["availability_order"] = body.get("availability_order")
        if change == 2:
            job["state"] = "available"
        elif change == 3:
            job.update(
                state="executing",
                attempt=body["attempt"],
                execution=before + 1,
                attempted_at=at,
                eligible_at=None,
            )
        elif change == 4:
            state = ("completed", "retryable", "discarded")[body["disposition"]]
            job.update(
                state=state,
                execution=None,
                next_attempt=body["next_attempt"],
                eligible_at=body["next_due_at"],
            )
            job["diagnostic"] = body["diagnostic"] or job["diagnostic"]
            job["completed_at"] = at if state == "completed" else None
        elif change == 5:
            job.update(state="cancelled", execution=None, next_attempt=None, eligible_at=None)
        else:
            job.update(state="available", eligible_at=at)
            if body["mode"] == 1:
                job.update(attempt=0, next_attempt=1, cycle=before + 1, attempted_at=None, completed_at=None)
        job["terminal_at"] = at if job["state"] in ("completed", "cancelled", "discarded") else None
