"""Questions of many threads in few statements."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from django_belay.storage.postgres import combining
from django_belay.storage.postgres.combining import Combiner


class Server:
    """Answers with the square; statements wait until they are let go."""

    def __init__(self) -> None:
        self.statements: list[list[int]] = []
        self.arrived = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.broken = False

    def one(self, number: int) -> int:
        return self._answer([number])[0]

    def many(self, numbers: Sequence[int]) -> list[int | Exception]:
        if self.broken:
            self.statements.append(list(numbers))
            raise RuntimeError("the statement failed")
        return [LookupError(str(n)) if n < 0 else n * n for n in self._answer(list(numbers), squared=False)]

    def _answer(self, numbers: list[int], *, squared: bool = True) -> list[int]:
        self.statements.append(numbers)
        self.arrived.release()
        assert self.go.acquire(timeout=20)
        if squared and numbers[0] < 0:
            raise LookupError(str(numbers[0]))
        return [n * n for n in numbers] if squared else numbers


class Crowd:
    """Threads that ask, and what they got."""

    def __init__(self, combiner: Combiner[int, int]) -> None:
        self._combiner = combiner
        self.answers: dict[int, Any] = {}
        self._threads: list[threading.Thread] = []

    def ask(self, number: int) -> None:
        thread = threading.Thread(target=self._ask, args=(number,))
        self._threads.append(thread)
        thread.start()

    def _ask(self, number: int) -> None:
        try:
            self.answers[number] = self._combiner.ask(number)
        except Exception as error:
            self.answers[number] = repr(error)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()


@pytest.fixture
def server() -> Server:
    return Server()


def piled(server: Server, numbers: Sequence[int], key: Any = lambda n: n) -> tuple[Crowd, Combiner[int, int]]:
    """A crowd whose questions wait behind slow statements, as many as may be on their way."""
    combiner: Combiner[int, int] = Combiner(server.one, server.many, key=key)
    crowd = Crowd(combiner)
    for number in range(combining.WIDTH):
        crowd.ask(1001 + number)
        assert server.arrived.acquire(timeout=20)
    for number in numbers:
        crowd.ask(number)
    waited = threading.Event()
    while len(combiner._waiting) < len(numbers):
        waited.wait(0.001)
    return crowd, combiner


def test_a_question_alone_is_asked_alone(server: Server) -> None:
    server.go.release()
    assert Combiner(server.one, server.many, key=lambda n: n).ask(3) == 9
    assert server.statements == [[3]]


def test_what_piles_up_is_asked_together(server: Server) -> None:
    crowd, _ = piled(server, range(10))
    server.go.release(combining.WIDTH + 1)
    crowd.join()
    assert {n: crowd.answers[n] for n in range(10)} == {n: n * n for n in range(10)}
    assert [len(numbers) for numbers in server.statements] == [*[1] * combining.WIDTH, 10]


def test_each_gets_its_own_error(server: Server) -> None:
    crowd, _ = piled(server, [-1, 2, -3])
    server.go.release(combining.WIDTH + 1)
    crowd.join()
    assert [crowd.answers[n] for n in (-1, 2, -3)] == ["LookupError('-1')", 4, "LookupError('-3')"]


def test_a_statement_that_fails_leaves_each_to_ask_alone(server: Server) -> None:
    crowd, combiner = piled(server, [-1, 2, 3])
    server.broken = True
    server.go.release(10)
    crowd.join()
    assert [crowd.answers[n] for n in (-1, 2, 3)] == ["LookupError('-1')", 4, 9]
    assert combiner.ask(5) == 25


def test_questions_of_one_key_are_never_together(server: Server) -> None:
    crowd, _ = piled(server, [1, 3, 2], key=lambda n: n % 2)
    server.go.release(10)
    crowd.join()
    assert sorted(len(numbers) for numbers in server.statements[combining.WIDTH :]) == [1, 2]
    assert {n: crowd.answers[n] for n in (1, 2, 3)} == {1: 1, 2: 4, 3: 9}


def test_a_statement_holds_a_bounded_number(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(combining, "MOST", 4)
    crowd, _ = piled(server, range(10))
    server.go.release(20)
    crowd.join()
    assert max(map(len, server.statements)) == 4
    assert len(crowd.answers) == 10 + combining.WIDTH


def test_a_slow_statement_holds_up_no_others(server: Server) -> None:
    crowd = Crowd(Combiner(server.one, server.many, key=lambda n: n))
    crowd.ask(1)
    assert server.arrived.acquire(timeout=20)
    crowd.ask(2)
    assert server.arrived.acquire(timeout=20)  # though the first one has not come back
    server.go.release(2)
    crowd.join()
    assert crowd.answers == {1: 1, 2: 4}


def test_a_waiter_that_is_interrupted_hangs_nobody(server: Server) -> None:
    combiner: Combiner[int, int] = Combiner(server.one, server.many, key=lambda n: n)
    crowd = Crowd(combiner)
    crowd.ask(1)
    assert server.arrived.acquire(timeout=20)
    interrupted = threading.Event()

    def ask() -> None:
        try:
            combiner.ask(2)
        except KeyboardInterrupt:
            interrupted.set()

    thread = threading.Thread(target=ask)
    thread.start()
    while not combiner._waiting:
        threading.Event().wait(0.001)
    send = ctypes.pythonapi.PyThreadState_SetAsyncExc
    send(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt))
    assert interrupted.wait(20)
    thread.join(20)
    crowd.ask(3)
    server.go.release(10)
    crowd.join()
    assert crowd.answers == {1: 1, 3: 9}
