"""The shared whole stores: each opens with the state it says, or is refused as it says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from django_belay.exceptions import JournalError
from django_belay.storage.journal.files.compaction import compact
from django_belay.storage.journal.files.journal import JournalOptions, open_journal
from django_belay.storage.journal.files.ownership import acquire
from django_belay.storage.journal.files.recovery import Recovered, recover
from django_belay.storage.journal.format.manifest import INFINITY

from .test_store_v2_vectors import by_id, load

STORES = load("stores.json")
REFERENCE = load("reference-stores.json")


def write_store(case: dict[str, Any], root: Path) -> dict[str, bytes]:
    for path, hex_bytes in case["files"].items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes.fromhex(hex_bytes))
    return read_tree(root)


def read_tree(root: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(root)): file.read_bytes() for file in sorted(root.rglob("*")) if file.is_file()
    }


def open_store(root: Path, **options: Any) -> Recovered:
    with acquire(str(root)) as ownership:
        return recover(ownership, **options)


@pytest.mark.parametrize("keep", [True, False], ids=["whole", "packed"])
@pytest.mark.parametrize("case", by_id([*STORES, *REFERENCE]))
def test_shared_store(case: dict[str, Any], keep: bool, tmp_path: Path) -> None:
    root = Path(os.path.realpath(tmp_path)) / "store"
    before = write_store(case, root)
    expect = case["expect"]
    if expect["outcome"] == "refuse":
        with pytest.raises(JournalError) as caught:
            open_store(root, keep_whole=keep)
        assert caught.value.refusal in expect["reasons"]
    else:
        recovered = open_store(root, keep_whole=keep)
        check_accepted(recovered, expect)
        recovered.close()
    assert read_tree(root) == before


def check_accepted(recovered: Recovered, expect: dict[str, Any]) -> None:
    assert recovered.state.count_states() == expect["jobs"]
    assert recovered.next_sequence == expect["next_sequence"]
    if "next_availability_order" in expect:
        assert recovered.state.next_order == expect["next_availability_order"]
    for job_id, fields in expect.get("job_states", {}).items():
        job = recovered.state.find_job(bytes.fromhex(job_id))
        assert job is not None
        assert {name: getattr(job, name) for name in fields} == fields
    if "job_states" in expect:
        assert set(recovered.state.jobs) == {bytes.fromhex(job_id) for job_id in expect["job_states"]}


def test_base_is_byte_for_byte_the_references(tmp_path: Path) -> None:
    """The same history, compacted at rest here and by the reference, gives the same base."""
    cases = {case["id"]: case for case in REFERENCE}
    root = Path(os.path.realpath(tmp_path)) / "store"
    write_store(cases["lifecycles"], root)
    options = JournalOptions(durability="write", writer="inline", reserve_bytes=0)
    with open_journal(str(root), options) as journal:
        compact(journal, now_ms=1_790_000_100_000, retention=INFINITY, at_rest=True)
        segments = Path(journal.recovered.authority.segments.path)
        ours = (segments / "00000000000000000001.tay").read_bytes()
    files = cases["compacted-infinity"]["files"]
    theirs = bytes.fromhex(next(data for path, data in files.items() if path.endswith("0001.tay")))
    assert ours[44:-64] == theirs[44:-64]
    assert recovered_jobs(root) == set(cases["compacted-infinity"]["expect"]["job_states"])


def recovered_jobs(root: Path) -> set[str]:
    recovered = open_store(root)
    found = {job_id.hex() for job_id in recovered.state.jobs}
    recovered.close()
    return found


@pytest.mark.parametrize("case", by_id(REFERENCE))
def test_activation_adds_and_removes_exactly_what_the_reference_does(
    case: dict[str, Any], tmp_path: Path
) -> None:
    root = Path(os.path.realpath(tmp_path)) / "store"
    before = write_store(case, root)
    open_journal(str(root), JournalOptions(durability="write", writer="inline")).close()
    after = read_tree(root)
    activation = case["expect"]["activation"]
    removed = {path for path in before if path not in after}
    assert removed == {path for path in before if any(under(path, gone) for gone in activation["removed"])}
    added = {path: data.hex() for path, data in after.items() if path not in before}
    assert added == activation["added"]
    assert all(after[path] == before[path] for path in after if path in before)


def under(path: str, gone: str) -> bool:
    return path == gone or path.startswith(gone.rstrip("/") + "/")
