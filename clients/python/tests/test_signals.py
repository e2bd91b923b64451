"""A signal handler may raise an exception at any point of a call: KeyboardInterrupt, or the soft time limit
of Celery. Nothing is left of the interrupted call, and later calls in all threads work.

Python runs the handlers of signals between two instructions of the main thread: after a call, at the
beginning of a function, and before the next round of a loop. The tests raise at each of these points in
turn."""

from __future__ import annotations

import contextlib
import dis
import os
import queue
import signal
import sys
import threading

import pytest
import redis
from conftest import LIMIT, is_held, patient_client, until

import dlock
from dlock import _schedule, _threads
from dlock._schedule import Schedule

# The instructions after which Python runs the handlers of signals.
CHECKED = {"RESUME", "CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD"}
# The same in Python 3.10.
CHECKED |= {"CALL_FUNCTION", "CALL_METHOD", "CALL_FUNCTION_KW", "JUMP_ABSOLUTE"}

# Where the handler raises: in dlock, with the classes of Python that share something between threads, or in
# redis-py.
DLOCK = (os.path.dirname(dlock.__file__), threading.__file__, queue.__file__)
REDIS_PY = (os.path.dirname(redis.__file__),)


class Interrupted(Exception):
    """Is raised by the handler."""


# Python 3.11 has been seen to free a trace function that is still in use.
_handlers = []


def continues_yield_from(frame):
    """Returns whether a generator continues inside a `yield from`, where Python runs no handler."""
    code, at = frame.f_code.co_code, frame.f_lasti
    instruction = "" if at < 0 else dis.opname[code[at]]
    # In Python 3.10, and later.
    return instruction == "YIELD_FROM" or (instruction == "RESUME" and code[at + 1] & 3 >= 2)


class Handler:
    """Raises once, at the point with this number."""

    def __init__(self, number, files):
        self.points_left = number
        self.files = files
        # The last instruction of each call that has begun.
        self.last = {}
        # One object for all calls: it must outlive the frames that refer to it.
        self.trace = self.see

    def see(self, frame, event, argument):
        if event == "call":
            if not frame.f_code.co_filename.startswith(self.files):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self.last[frame] = "" if continues_yield_from(frame) else "RESUME"
        elif event == "opcode":
            last = self.last.get(frame)
            instruction = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            self.last[frame] = "" if continues_yield_from(frame) else instruction
            if last in CHECKED and instruction != "RESUME" and not self.begins_exit(frame, last):
                self.points_left -= 1
                if self.points_left == 0:
                    raise Interrupted
        return self.trace

    @staticmethod
    def begins_exit(frame, last):
        """Returns whether this is the first point of an `__exit__`, which cannot catch an exception there."""
        return last == "RESUME" and frame.f_code.co_name == "__exit__"


def interrupt(number, files, work):
    """Interrupts the work at the point with this number. Returns whether the work has so many points."""
    handler = Handler(number, files)
    _handlers.append(handler)
    sys.settrace(handler.trace)
    try:
        with contextlib.suppress(Interrupted):
            work()
    finally:
        sys.settrace(None)
    return handler.points_left <= 0


@pytest.fixture
def time_limit():
    """Ends a test that hangs."""

    def end(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(6 * LIMIT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


class Releaser(threading.Thread):
    """Releases the hold of another client once a client waits for it, or `end` is called."""

    def __init__(self, r):
        super().__init__(daemon=True)
        self.r = r
        self.ended = threading.Event()
        r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 600_000)
        self.start()

    def run(self):
        while not self.r.execute_command("DLOCK.WAITERS", "foo") and not self.ended.wait(0.0005):
            pass
        self.r.execute_command("DLOCK.RELEASE", "foo", "holder")

    def end(self):
        self.ended.set()
        self.join()


@pytest.mark.parametrize("kind", ["free", "contended", "with a new background", "in redis-py"])
def test_an_exception_of_a_signal_handler_leaves_a_working_client(r, server, monkeypatch, time_limit, kind):
    def work():
        with dlock.Lock(client, "foo", timeout=600, auto_renew=True):
            pass

    def work_elsewhere():
        with dlock.Lock(client, "bar", timeout=600, auto_renew=True) as lock:
            fence = lock.fence
        done.put(fence)

    done, number, has_point = queue.SimpleQueue(), 0, True
    if kind == "with a new background":
        monkeypatch.setattr(_threads, "LINK_IDLE", 0.1)
        monkeypatch.setattr("dlock._waits.IDLE", 0.1)
    with patient_client(server) as client:
        while has_point:
            number += 1
            if kind == "with a new background":
                monkeypatch.setattr(_threads, "_background", _threads.Background())
            releaser = None if kind in ("free", "in redis-py") else Releaser(r)
            has_point = interrupt(number, REDIS_PY if kind == "in redis-py" else DLOCK, work)
            if releaser is not None:
                releaser.end()
            until(f"the lock is free after an exception at point {number}", lambda: not is_held(r))
            threading.Thread(target=work_elsewhere, daemon=True).start()
            assert done.get(timeout=LIMIT) > 0
            # Each reply belongs to its command.
            assert client.echo(str(number)) == str(number).encode()
    # Fewer in newer versions of Python, which do not trace every call.
    assert number > 50


def test_at_least_closes_nothing_after_an_exception_before_the_block(r, server, time_limit):
    def work():
        with dlock.Lock(client, "foo", timeout=600, at_least=600):
            begun.append(number)

    begun, number = [], 0
    with patient_client(server) as client:
        with dlock.Lock(client, "bar", at_least=600):  # what the client does once, it has done
            pass
        while not begun:
            number += 1
            interrupt(number, DLOCK, work)
            if not begun:
                until(f"the lock is open after an exception at point {number}", lambda: not r.exists("foo"))
    assert number > 20


@pytest.mark.parametrize("kind", ["several locks", "a leader"])
def test_an_exception_of_a_signal_handler_leaves_no_lock(r, server, time_limit, kind):
    def work():
        if kind == "a leader":
            dlock.Leader(client, "a", timeout=600).lead(lambda lock: None)
            return
        with dlock.lock_all(client, ["a", "b"], timeout=600):
            pass

    number, has_point = 0, True
    with patient_client(server) as client:
        while has_point:
            number += 1
            has_point = interrupt(number, DLOCK, work)
            until(f"no lock is left after an exception at point {number}", lambda: not r.dbsize())
    assert number > 50


def test_the_schedule_is_usable_after_an_exception_of_a_signal_handler():
    number, has_point = 0, True
    while has_point:
        number += 1
        schedule, first, second = Schedule(), object(), object()
        schedule.set(first, 1, None)
        schedule.set(second, 2, None)
        has_point = interrupt(number, (_schedule.__file__,), lambda: schedule.remove(first))  # noqa: B023
        schedule.remove(first)
        assert schedule.pop(2) == (second, None)
    assert number > 2


def test_each_place_at_the_pool_is_given_back(r, server, time_limit):
    """The client limits how many commands are sent at once over a small pool."""
    with patient_client(server, max_connections=2) as client:
        number, has_point = 0, True
        while has_point:
            number += 1
            has_point = interrupt(number, (_threads.__file__,), dlock.Lock(client, "foo").locked)
            assert _threads._turns_of(client).qsize() == 1
    assert number > 2
