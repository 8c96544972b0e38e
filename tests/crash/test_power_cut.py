"""Power loss and kills at every step: acknowledged records are all there, or the refusal says where.

Each scenario runs once and is recorded; every prefix of its steps is rebuilt in every way a
disk may hold it, opened, and compared with what had been acknowledged by then.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_belay.exceptions import JournalError
from django_belay.storage.journal.files import fail
from django_belay.storage.journal.files.compaction import compact
from django_belay.storage.journal.files.copy import CopyOptions, backup, restore
from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.journal import Journal, JournalOptions, open_journal
from django_belay.storage.journal.files.ownership import acquire
from django_belay.storage.journal.files.recovery import recover
from django_belay.storage.journal.files.salvage import salvage
from django_belay.storage.journal.format.manifest import INFINITY
from tests.unit.journal.history import History, view

from .power_cut import VARIANTS, Disk, Recorder, Variant

SYNC = JournalOptions(
    durability="sync", validated_filesystem=True, writer="inline", rotation_target_bytes=2048, reserve_bytes=0
)
TAIL_FAULTS = {
    "incomplete_record", "incomplete_footer", "incomplete_segment_header", "ambiguous_short_tail",
    "record_checksum", "header_checksum", "invalid_magic", "zero_byte_segment", "corrupt_segment_header",
    "corrupt_footer", "checksum",
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_real_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a sync makes durable is modelled from the recorded steps; waiting for a disk adds nothing."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def base(tmp_path: Path) -> str:
    return os.path.realpath(tmp_path)


def new_store(base: str, records: int = 0, seed: int = 1) -> tuple[str, History]:
    path = f"{base}/store"
    initialise(path, now_ms=1_000, retention=INFINITY, durability="write")
    history = History(seed=seed)
    with open_journal(path, SYNC) as journal:
        for _ in range(records):
            journal.append([history.draw(journal.state)])
    return path, history


class Run:
    """A recorded scenario: its steps, and what had been acknowledged after each."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.recorder = Recorder()
        self.disk = Disk(root)
        self.acknowledged: list[tuple[int, dict[str, Any]]] = []

    def acknowledge(self, journal: Journal) -> None:
        self.acknowledged.append((len(self.recorder.steps), comparable(view(journal.state))))

    def at(self, number: int) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
        """The last view acknowledged by step ``number``, and all that come after it."""
        past = [seen for steps, seen in self.acknowledged if steps <= number]
        later = [seen for steps, seen in self.acknowledged if steps > number]
        return (past[-1] if past else None), later[:1]


def comparable(seen: dict[str, Any]) -> dict[str, Any]:
    schedules = {name: (item.revision, item.next_at) for name, item in seen["schedules"].items()}
    return {
        **seen,
        "schedules": schedules,
        "next_order": None,
        "jobs": {k: strip(v) for k, v in seen["jobs"].items()},
    }


def strip(job: Any) -> tuple[object, ...]:
    return (job.revision, job.state, job.attempt, job.definition.encoded, job.terminal_at)


def opened(path: str) -> dict[str, Any]:
    with acquire(path) as ownership:
        recovered = recover(ownership)
        seen = comparable(view(recovered.state))
        recovered.close()
    return seen


def opened_or_refused(path: str) -> dict[str, Any] | JournalError:
    try:
        return opened(path)
    except JournalError as error:
        return error


def check_all(run: Run, base: str, variants: tuple[Variant, ...] = VARIANTS) -> dict[str, int]:
    outcomes = {"opened": 0, "refused": 0}
    for number in range(len(run.recorder.steps) + 1):
        if number:
            run.disk.feed(run.recorder.steps[number - 1])
        for variant in variants:
            place = Path(base) / "rebuilt"
            run.disk.write_to(place, variant)
            outcomes[check_one(run, number, variant, str(place), base)] += 1
            shutil.rmtree(place)
    return outcomes


def check_one(run: Run, number: int, variant: Variant, place: str, base: str) -> str:
    known, following = run.at(number)
    label = f"{variant} after {run.recorder.steps[number - 1].point if number else 'nothing'}"
    seen = opened_or_refused(place)
    if isinstance(seen, dict):
        assert seen in [known, *following], label
        return "opened"
    assert variant in ("torn", "zeros"), f"{label}: {seen}"
    assert seen.refusal in TAIL_FAULTS, f"{label}: {seen}"
    assert seen.path is not None
    assert seen.offset is not None, f"{label}: {seen}"
    salvage(place, f"{base}/saved", durability="write")
    assert opened(f"{base}/saved") in [known, *following], label
    shutil.rmtree(f"{base}/saved")
    return "refused"


def test_append_and_rotation(base: str) -> None:
    path, history = new_store(base)
    run = Run(path)
    with open_journal(path, SYNC) as journal, fail.arm(run.recorder):
        run.acknowledge(journal)
        for _ in range(14):
            journal.append([history.draw(journal.state)])
            run.acknowledge(journal)
        assert journal.tail.written.segment_id >= 3
    assert {"append.write", "append.fsync", "rotate.footer.write", "rotate.footer.fsync", "rotate.stage.create",
            "rotate.stage.write", "rotate.stage.fsync", "rotate.rename", "rotate.fsync_dir"} <= set(run.recorder.points)  # fmt: skip
    outcomes = check_all(run, base)
    assert outcomes["opened"] > outcomes["refused"] > 0


def test_compaction(base: str) -> None:
    path, history = new_store(base, records=12)
    run = Run(path)
    with open_journal(path, SYNC) as journal, fail.arm(run.recorder):
        run.acknowledge(journal)
        calls = []

        def pace(done: int) -> None:
            if not calls:
                calls.append(done)
                journal.append([history.draw(journal.state)])
                run.acknowledge(journal)

        compact(journal, now_ms=history.now, retention=INFINITY, pace=pace)
        run.acknowledge(journal)
        journal.append([history.draw(journal.state)])
        run.acknowledge(journal)
    points = set(run.recorder.points)
    for prefix in ("compact.base", "compact.manifest", "compact.tail", "compact.delta", "compact.generation",
                   "compact.current", "reclaim.segment", "reclaim.manifest", "reclaim.epoch"):  # fmt: skip
        assert any(point.startswith(prefix) for point in points), prefix
    check_all(run, base)


def test_activation_after_every_point_of_a_compaction(base: str) -> None:
    """Whatever a kill leaves, the next owner goes on and cleans up only what it may."""
    path, history = new_store(base, records=12)
    run = Run(path)
    with open_journal(path, SYNC) as journal, fail.arm(run.recorder):
        compact(journal, now_ms=history.now, retention=INFINITY)
        want = comparable(view(journal.state))
    for number in range(len(run.recorder.steps) + 1):
        if number:
            run.disk.feed(run.recorder.steps[number - 1])
        place = Path(base) / "rebuilt"
        run.disk.write_to(place, "kill")
        again = History(seed=99)
        with open_journal(str(place), SYNC) as journal:
            assert comparable(view(journal.state)) == want
            journal.append([again.draw(journal.state)])
            last = comparable(view(journal.state))
        assert opened(str(place)) == last
        shutil.rmtree(place)


EXPECTED_INIT = {
    "existing_root_or_lock_missing", "initialization_required", "epochs_missing", "authority_metadata_missing",
    "metadata_missing_or_invalid", "metadata_checksum", "metadata_length",
}  # fmt: skip


def test_initialisation_has_no_half_state(base: str) -> None:
    run = Run(f"{base}/store")
    run.disk = Disk(base)
    with fail.arm(run.recorder):
        initialise(f"{base}/store", now_ms=1, retention=INFINITY, durability="write")
    assert {"init.mkdir", "init.lock.create", "init.marker.rename", "init.generation.rename",
            "init.current.rename", "init.current.fsync_dir"} <= set(run.recorder.points)  # fmt: skip
    last_rename = max(
        i for i, step in enumerate(run.recorder.steps, 1) if step.point == "init.current.rename"
    )
    for number in range(len(run.recorder.steps) + 1):
        if number:
            run.disk.feed(run.recorder.steps[number - 1])
        for variant in VARIANTS:
            place = Path(base).parent / f"{Path(base).name}-rebuilt"
            run.disk.write_to(place, variant)
            seen = opened_or_refused(f"{place}/store")
            if isinstance(seen, dict):
                assert seen["jobs"] == {}
                assert number >= last_rename, f"{variant} {number}"
            else:
                assert seen.refusal in EXPECTED_INIT, f"{variant} {number}: {seen}"
                assert number <= last_rename or variant != "kill"
                assert number < len(run.recorder.steps), "success was reported"
            shutil.rmtree(place)


@pytest.mark.parametrize("restoring", [False, True])
def test_copies_are_whole_or_without_authority(base: str, restoring: bool) -> None:
    path, _ = new_store(base, records=10)
    want = opened(path)
    options = CopyOptions(durability="sync", validated_filesystem=True)
    backup(path, f"{base}/first", f"{base}/first.json", options)
    run = Run(base)
    with fail.arm(run.recorder):
        if restoring:
            restore(f"{base}/first", f"{base}/copy", f"{base}/copy.json", f"{base}/first.json", options)
        else:
            backup(path, f"{base}/copy", f"{base}/copy.json", options)
    rename = 1 + [step.point for step in run.recorder.steps].index("copy.rename")
    for number in range(len(run.recorder.steps) + 1):
        if number:
            run.disk.feed(run.recorder.steps[number - 1])
        for variant in VARIANTS:
            place = Path(base).parent / f"{Path(base).name}-rebuilt"
            run.disk.write_to(place, variant)
            seen = opened_or_refused(f"{place}/copy")
            if isinstance(seen, dict):
                assert seen == want
                assert number >= rename
            else:
                assert seen.refusal == "existing_root_or_lock_missing", f"{variant} {number}: {seen}"
                assert number < len(run.recorder.steps), "success was reported"
            assert opened(f"{place}/store") == want
            shutil.rmtree(place)


def noting(views: list[dict[str, Any]]) -> Callable[[Journal], None]:
    return lambda journal: views.append(comparable(view(journal.state)))


def scenario_append(path: str, history: History, note: Callable[[Journal], None]) -> None:
    with open_journal(path, SYNC) as journal:
        note(journal)
        for _ in range(6):
            journal.append([history.draw(journal.state)])
            note(journal)


def scenario_compact(path: str, history: History, note: Callable[[Journal], None]) -> None:
    with open_journal(path, SYNC) as journal:
        note(journal)
        compact(journal, now_ms=history.now, retention=INFINITY)
        journal.append([history.draw(journal.state)])
        note(journal)


def scenario_give_up(path: str, history: History, note: Callable[[Journal], None]) -> None:
    """Called off when the candidate has everything: all of it is removed, and the journal goes on."""
    with open_journal(path, SYNC) as journal:
        note(journal)
        with pytest.raises(JournalError):
            compact(
                journal,
                now_ms=history.now,
                retention=INFINITY,
                is_cancelled=lambda: any(Path(path).glob("epochs/.tay-candidate-*/MANIFEST")),
            )
        journal.append([history.draw(journal.state)])
        note(journal)


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES], ids=["enospc", "eio", "erofs", "eacces"]
)
@pytest.mark.parametrize("scenario", [scenario_append, scenario_compact, scenario_give_up])
def test_failing_system_calls_lose_nothing(base: str, scenario: Any, number: int) -> None:
    """An error at each point in turn: the owner stops or goes on, and what was acknowledged is there."""
    path, _ = new_store(base, records=60)
    shutil.copytree(path, f"{base}/fresh")
    count = Recorder()
    with fail.arm(count):
        scenario(path, History(seed=4), lambda journal: None)
    for at in range(len(count.points)):
        shutil.rmtree(path)
        shutil.copytree(f"{base}/fresh", path)
        views: list[dict[str, Any]] = [opened(path)]
        with fail.arm(Recorder(OSError(number, "injected"), at)):
            try:
                scenario(path, History(seed=4), noting(views))
            except JournalError as error:
                assert error.refusal  # noqa: PT017  # most points refuse, some (reclamation) may not
        history = History(seed=77)
        seen = opened(path)
        known = views[-1]
        missing = [
            key
            for key, job in known["jobs"].items()
            if key not in seen["jobs"] or job[0] > seen["jobs"][key][0]
        ]
        assert missing == [], f"{count.points[at]}: acknowledged and gone"
        with open_journal(path, SYNC) as journal:
            journal.append([history.draw(journal.state)])


def test_a_salvaged_store_is_whole_or_without_authority(base: str) -> None:
    path, history = new_store(base, records=10)
    with open_journal(path, SYNC) as journal:
        compact(journal, now_ms=history.now, retention=INFINITY)
        for _ in range(6):
            journal.append([history.draw(journal.state)])
    want = opened(path)
    last = sorted(Path(path).glob("epochs/e-*/segments/*.tay"))[-1]
    with last.open("ab") as file:
        file.write(b"TAY\x00\x01torn")
    run = Run(base)
    with fail.arm(run.recorder):
        salvage(path, f"{base}/saved", durability="sync", validated_filesystem=True)
    rename = 1 + [step.point for step in run.recorder.steps].index("salvage.current.rename")
    for number in range(len(run.recorder.steps) + 1):
        if number:
            run.disk.feed(run.recorder.steps[number - 1])
        for variant in VARIANTS:
            place = Path(base).parent / f"{Path(base).name}-rebuilt"
            run.disk.write_to(place, variant)
            seen = opened_or_refused(f"{place}/saved")
            if isinstance(seen, dict):
                assert seen == want
                assert number >= rename
            else:
                assert seen.refusal in EXPECTED_INIT, f"{variant} {number}: {seen}"
                assert number < len(run.recorder.steps), "success was reported"
            shutil.rmtree(place)


def test_activation_of_a_sealed_highest_segment(base: str) -> None:
    path, history = new_store(base, records=6)
    with open_journal(path, SYNC) as journal:
        journal.tail.rotate()
    sorted(Path(path).glob("epochs/e-*/segments/*.tay"))[-1].unlink()
    run = Run(path)
    with fail.arm(run.recorder), open_journal(path, SYNC) as journal:
        run.acknowledge(journal)
        journal.append([history.draw(journal.state)])
        run.acknowledge(journal)
    run.acknowledged.insert(0, (0, run.acknowledged[0][1]))
    assert "rotate.rename" in run.recorder.points
    check_all(run, base)
