"""Carries out steps with threads. Besides the caller's, and only while there is something to do: one thread a
process that watches the clock, and for each client one that renews and releases and one that listens. They
have connections of their own, with short time limits, so that neither a hung server nor a full pool delays
them for long; all end with the process."""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import threading
import time
from typing import Any, Callable

from redis.exceptions import ResponseError

from ._attempt import SINGLE, Listen, Owe, Pause, Watch
from ._clients import LIMIT, is_cluster, own_client
from ._hold import Sleep, Steps, Task, logger, now
from ._members import Answers, Ask, Begin, run_id
from ._waits import IDLE, Desk, Wait

# How long the caller waits for a release that is owed.
PATIENCE = 0.5
# How long a quorum waits for an answer: for a connection, and for the reply.
ASK_LIMIT = 2 * LIMIT
# The longest sleep before the clock is read again: timers stop while the machine is suspended.
TICK = 1.0


def run(steps: Steps, client: Any) -> Any:
    """Carries out `steps` over `client`, in this thread."""
    try:
        step = next(steps)
        while True:
            try:
                # A command, which has nothing between it and the client: this is the path of every
                # acquisition.
                outcome = client.execute_command(*step) if type(step) is tuple else _perform(step, client)
            except BaseException as why:
                step = steps.throw(why)
            else:
                step = steps.send(outcome)
    except StopIteration as end:
        return end.value


def _perform(step: Any, client: Any) -> Any:
    if isinstance(step, Pause):
        return step.wait.event.wait(step.seconds)
    if isinstance(step, Sleep):
        return time.sleep(step.seconds)
    if isinstance(step, Listen):
        listener = client if step.member == SINGLE else client.members[step.member]
        return _clock.background(listener).listen()
    if isinstance(step, Watch):
        return _clock.watch(step.hold, client)
    if isinstance(step, Ask):
        return _ask(step, client)
    if isinstance(step, Begin):
        if step.member is None:
            # Not in the thread of a member, which answers what this asks.
            _start(run, "dlock-look", step.steps, client)
            return None
        return _clock.background(client.members[step.member], member=True).submit(step.steps)
    assert isinstance(step, Owe)
    answered = threading.Event()
    for member, owed in step.owed.items():
        owed.answered = answered.set
        if member == SINGLE:
            _clock.watch(owed, client)
        else:
            _clock.watch(owed, client.members[member], member=True)
    end = now() + PATIENCE
    while not step.enough() and answered.wait(max(end - now(), 0)):
        answered.clear()
    return None


def _ask(step: Ask, client: Any) -> Answers:
    inbox: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    for member, question in step.questions.items():
        background = _clock.background(client.members[member], member=True)
        report = functools.partial(_heard, step, inbox, background, member)
        background.submit(reporting(question, report))
    answers: Answers = {}
    end = now() + ASK_LIMIT
    while len(answers) < len(step.questions) and not step.enough(answers):
        try:
            member, answer = inbox.get(timeout=max(end - now(), 0))
        except queue.Empty:
            break
        answers[member] = answer
    return answers


def _heard(
    step: Ask, inbox: queue.SimpleQueue[tuple[int, Any]], background: Background, member: int, answer: Any
) -> Steps | None:
    then = step.heard(member, answer, background.run_id)
    inbox.put((member, answer))
    return then


def reporting(question: Steps, report: Callable[[Any], Steps | None]) -> Steps:
    then = report((yield from question))
    if then is not None:
        yield from then


class Background:
    """What goes on for one client. Its commands go out one after the other, so that a RELEASE follows the
    ACQUIRE that it takes back. `member`: it votes in a quorum."""

    def __init__(self, client: Any, member: bool) -> None:
        self.client = client
        # Who is at the other end of the connection of a member.
        self.run_id: str | None = None
        self._connected = self._identify if member else None
        self.tasks: dict[int, Task] = {}
        self.used = True
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[tuple[Steps, Task | None]] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        self._own: Any = None
        self._desk: Desk | None = None

    def is_idle(self) -> bool:
        return not self.tasks and self._jobs.empty() and self._worker is None and self._desk is None

    # Renewals and releases.

    def submit(self, steps: Steps, task: Task | None = None) -> None:
        if is_cluster(self.client):
            # A node that hangs holds up nothing that is for the others.
            try:
                _start(self._carry_out, "dlock-renewal", steps, task)
            except BaseException:
                if task is not None:
                    task.woken()
                raise
        else:
            self._jobs.put((steps, task))
            self.go_on()

    def go_on(self) -> None:
        """Works, if there is work: where no thread could be started, the clock asks again."""
        with self._lock:
            if self._worker is None and not self._jobs.empty():
                self._worker = _start(self._work, "dlock-renewal")

    def _work(self) -> None:
        while True:
            try:
                steps, task = self._jobs.get(timeout=IDLE)
            except queue.Empty:
                with self._lock:
                    if not self._jobs.empty():
                        continue
                    self._worker = None
                    break
            self._carry_out(steps, task)
        if self._own not in (None, self.client):
            self._own.connection_pool.disconnect()
        _clock.look()

    def _carry_out(self, steps: Steps, task: Task | None) -> None:
        try:
            if self._own is None:
                self._own = own_client(self.client, self._connected)
            run(steps, self._own)
        except Exception:
            logger.exception("a renewal or a release failed")
        finally:
            if task is not None:
                task.woken()
        _clock.look()

    def _identify(self, connection: Any) -> None:
        """Asks, on each new connection, whose vote it carries: a member that was restarted is another
        server."""
        self.run_id = None
        connection.send_command("INFO", "server")
        # Without the right to ask, nobody can tell.
        with contextlib.suppress(ResponseError):
            self.run_id = run_id(connection.read_response())

    # Messages.

    def listen(self) -> Wait:
        with self._lock:
            if self._desk is None:
                desk = Desk(threading.Event)
                _start(self._listen, "dlock-messages", desk)
                self._desk = desk
            return self._desk.open()

    def _listen(self, desk: Desk) -> None:
        while not self._is_done(desk):
            pubsub = None
            try:
                client = own_client(self.client)
                pubsub = client.pubsub()
                pubsub.subscribe(desk.channel)
                while not self._is_done(desk):
                    desk.heard(pubsub.get_message(timeout=LIMIT))
                    what = desk.silent()
                    if what == "ping":
                        pubsub.ping()
                    elif what == "reconnect":
                        break
            except Exception as why:
                logger.debug("not listening: %s", why)
                desk.disconnected()
                time.sleep(LIMIT / 2)
            finally:
                desk.disconnected()
                if pubsub is not None:
                    with contextlib.suppress(Exception):
                        pubsub.close()
        _clock.look()

    def _is_done(self, desk: Desk) -> bool:
        with self._lock:
            if desk.is_idle() and self._desk is desk:
                self._desk = None
            return self._desk is not desk


class Clock:
    """Wakes every task of the process when it wants to be woken. Does no I/O, so that nothing delays it."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._backgrounds: dict[tuple[int, bool], Background] = {}
        self._next = float("inf")
        self._thread: threading.Thread | None = None

    def background(self, client: Any, *, member: bool = False) -> Background:
        with self._changed:
            return self._background(client, member)

    def watch(self, task: Task, client: Any, *, member: bool = False) -> None:
        with self._changed:
            tasks = self._background(client, member).tasks
            tasks[id(task)] = task
            task.forget = functools.partial(tasks.pop, id(task), None)
            if task.wake_at() < self._next:
                self._next = 0
                self._changed.notify()

    def _background(self, client: Any, member: bool) -> Background:
        # Clients that share a pool share the background.
        name = id(getattr(client, "connection_pool", client)), member
        found = self._backgrounds.get(name)
        if found is None:
            found = self._backgrounds[name] = Background(client, member)
        found.used = True
        if self._thread is None:
            self._thread = _start(self._run, "dlock-clock")
        return found

    def look(self) -> None:
        """Something has changed."""
        with self._changed:
            self._next = 0
            self._changed.notify()

    def _run(self) -> None:
        while True:
            due = []
            with self._changed:
                self._next = float("inf")
                for name, background in list(self._backgrounds.items()):
                    try:
                        background.go_on()
                    except RuntimeError:
                        self._next = min(self._next, now() + TICK / 10)
                    for number, task in list(background.tasks.items()):
                        if task.finished():
                            background.tasks.pop(number, None)
                        elif task.wake_at() <= now():
                            due.append((task, background))
                        else:
                            self._next = min(self._next, task.wake_at())
                    # Stays for a while, so that a lock in a loop does not wake this thread at each turn.
                    self._next = min(self._next, now() + TICK)
                    if background.is_idle() and not background.used:
                        del self._backgrounds[name]
                    background.used = False
                if not due:
                    self._changed.wait(None if self._next == float("inf") else max(self._next - now(), 0))
                    continue
            for task, background in due:
                # Whatever one of them does, `sys.exit` in a callback too: the others are still watched.
                try:
                    steps = task.wake()
                    if steps is not None:
                        background.submit(steps, task)
                except BaseException:
                    logger.exception("a lock cannot be looked after")


def _start(target: Any, name: str, *args: Any) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, args=args, daemon=True)
    thread.start()
    return thread


def _forked() -> None:
    """The threads stayed with the parent, and so did what they were doing."""
    global _clock
    _clock = Clock()


_clock = Clock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
