"""Interrupts reach a run only in user code."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from django_belay.engine.run import Run
from django_belay.engine.watch import Watch
from django_belay.exceptions import LeaseLost, Timeout
from tests.unit.engine.making import NOW, make_run


def in_thread(body: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    return thread


def spin_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
    return True


def test_first_run_is_told_by_started_at() -> None:
    """Rule 17: not by the attempt, which a snooze gives back."""
    assert make_run(attempt=1, started_at=NOW).is_first
    assert not make_run(attempt=1, started_at=NOW.replace(year=2029)).is_first


def test_interrupt_stops_user_code_at_once() -> None:
    run, inside, caught = make_run(), threading.Event(), []

    def body() -> None:
        try:
            run.begin()
            inside.set()
            spin_until(lambda: False)
        except Timeout as error:
            caught.append(error)
        finally:
            run.end()

    thread = in_thread(body)
    assert inside.wait(5)
    assert run.interrupt(Timeout)
    thread.join(5)
    assert len(caught) == 1


def test_interrupt_waits_for_the_end_of_engine_code() -> None:
    run, inside, go, trace = make_run(), threading.Event(), threading.Event(), []

    def body() -> None:
        try:
            run.begin()
            with run.engine():
                inside.set()
                go.wait(5)
                spin_until(lambda: False, 0.05)
                trace.append("engine code ended")
            trace.append("user code")
        except LeaseLost:
            trace.append("lost")
        finally:
            run.end()

    thread = in_thread(body)
    assert inside.wait(5)
    run.interrupt(LeaseLost)
    go.set()
    thread.join(5)
    assert trace == ["engine code ended", "lost"]


def test_interrupt_before_the_start_is_raised_at_the_start() -> None:
    run = make_run()
    assert run.interrupt(LeaseLost)
    with pytest.raises(LeaseLost):
        run.begin()
    run.end()


def test_an_ended_run_is_never_interrupted() -> None:
    run = make_run()
    run.begin()
    run.end()
    assert not run.interrupt(Timeout)


def test_a_swallowed_interrupt_comes_again_at_the_next_border() -> None:
    run, inside, trace = make_run(), threading.Event(), []

    def body() -> None:
        run.begin()
        inside.set()
        try:
            spin_until(lambda: False)
        except BaseException:
            trace.append("swallowed")
        try:
            with run.engine():
                trace.append("never")
        except Timeout:
            trace.append("again")
        run.end()

    thread = in_thread(body)
    assert inside.wait(5)
    run.interrupt(Timeout)
    thread.join(5)
    assert trace == ["swallowed", "again"]


def test_interrupts_never_leak_out_of_their_run() -> None:
    """Whatever the timing, code after ``end`` runs undisturbed."""
    for _ in range(300):
        run, inside, leaked = make_run(), threading.Event(), []

        def body(run: Run = run, inside: threading.Event = inside, leaked: list[bool] = leaked) -> None:
            try:
                run.begin()
                inside.set()
                for _ in range(20):
                    with run.engine():
                        pass
            except Timeout:
                pass
            finally:
                run.end()
            try:
                spin_until(lambda: False, 0.0005)
            except Timeout:
                leaked.append(True)

        thread = in_thread(body)
        inside.wait(5)
        run.interrupt(Timeout)
        thread.join(5)
        assert not leaked


def test_watch_interrupts_an_overrun_and_counts_it_as_stuck_after_the_grace() -> None:
    watch, run, go, times = Watch(grace_s=0.05), make_run(), threading.Event(), []

    def body() -> None:
        run.begin()
        while not go.is_set():
            try:
                spin_until(go.is_set)
            except Timeout:
                times.append(1)
        run.end()

    thread = in_thread(body)
    watch.add(run, 0.02)
    assert spin_until(lambda: watch.turn() is None and watch.stuck == 1, 5)
    assert times
    go.set()
    thread.join(5)
    assert watch.stuck == 0


def test_leases_are_renewed_for_the_timeout_and_the_grace() -> None:
    watch = Watch(grace_s=15)
    assert watch.renew_for_s(300) == 315
    assert watch.renew_for_s(None) is None


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_cannot_reach_the_engine(tmp_path: Path) -> None:
    """It shares the sockets of its parent's connections; and it does not come back as the job."""
    run, told = make_run(), tmp_path / "told"
    if not (pid := os.fork()):
        try:
            with run.engine():
                told.write_text("reached")
        except RuntimeError as error:
            told.write_text(str(error))
        finally:
            run.end_fork()
            os._exit(99)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    assert "forked" in told.read_text()
    run.end_fork()  # the job's own process stays
