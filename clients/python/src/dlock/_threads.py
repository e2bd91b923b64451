"""Carries out steps (see `_steps.py`) with threads.

Background work has its own threads, which are daemon threads. The process has one that wakes tasks (`Clock`).
Each client has two (`Background`): one renews and releases, the other receives messages. These two end when
they are idle. They have connections of their own, with short time limits. So neither a hung server nor a full
connection pool delays them for long. In a cluster, each renewal and each release has a thread of its own
instead, and uses the user's client."""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import threading
import time
from typing import Any, Callable

from ._clients import MemberConnection, close_idle_connections, is_cluster, own_client, translated
from ._clock import now
from ._hold import logger
from ._protocol import Reconnect, Steps
from ._steps import (
    ASK_LIMIT,
    LIMIT,
    PATIENCE,
    SINGLE,
    TICK,
    Answers,
    Ask,
    Begin,
    Listen,
    Owe,
    Pause,
    Peer,
    Sleep,
    Task,
    Watch,
    WhichPeer,
    reporting,
)
from ._waits import IDLE, Wait, WaitRegistry


def run(steps: Steps, client: Any) -> Any:
    """Carries out `steps` over `client`, in this thread."""
    outcome, failure = None, None
    while True:
        try:
            step = steps.send(outcome) if failure is None else steps.throw(failure)
            outcome = failure = None
            # A command is sent here and not in `_perform`, to save the call.
            outcome = client.execute_command(*step) if type(step) is tuple else _perform(step, client)
        except BaseException as why:
            # A signal handler can raise anywhere in this loop: the steps must still clean up.
            if getattr(steps, "gi_frame", None) is None:
                if isinstance(why, StopIteration):
                    return why.value
                raise
            failure = translated(why)


def _perform(step: Any, client: Any) -> Any:
    if isinstance(step, Pause):
        return step.wait.event.wait(step.seconds)
    if isinstance(step, Sleep):
        return time.sleep(step.seconds)
    if isinstance(step, WhichPeer):
        return client.peer
    if isinstance(step, Listen):
        listener = client if step.member == SINGLE else client.members[step.member]
        return _clock.background(listener).listen()
    if isinstance(step, Watch):
        return _clock.watch(step.hold, client)
    if isinstance(step, Ask):
        return _ask(step, client)
    if isinstance(step, Reconnect):
        return _reconnect(client)
    if isinstance(step, Begin):
        if step.member is None:
            # The threads of the members send the questions of these steps, while the steps wait. So the steps
            # run in a thread that belongs to no member.
            _start(run, "dlock-steps", step.steps, step.quorum)
            return None
        return _clock.background(step.quorum.members[step.member], is_member=True).submit(step.steps)
    assert isinstance(step, Owe)
    # The background repeats each owed command (a RELEASE or CANCEL) until the server has confirmed it. This
    # thread waits for the first answers.
    answer_arrived = threading.Event()
    for member, owed in step.owed.items():
        owed.on_answer = answer_arrived.set
        if member == SINGLE:
            _clock.watch(owed, client)
        else:
            _clock.watch(owed, client.members[member], is_member=True)
    end = now() + PATIENCE
    while not step.enough() and answer_arrived.wait(max(end - now(), 0)):
        answer_arrived.clear()
    return None


def _reconnect(client: Any) -> None:
    if isinstance(client, MemberConnection):
        client.disconnect()
    else:
        with contextlib.suppress(Exception):
            close_idle_connections(client)
        _clock.reconnect_subscriber(client)


def _ask(step: Ask, client: Any) -> Answers:
    inbox: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    for member, question in step.questions.items():
        background = _clock.background(client.members[member], is_member=True)
        report = functools.partial(_report_answer, step, inbox, background, member)
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


def _report_answer(
    step: Ask, inbox: queue.SimpleQueue[tuple[int, Any]], background: Background, member: int, answer: Any
) -> Steps | None:
    next_steps = step.on_answer(member, answer, background.peer())
    inbox.put((member, answer))
    return next_steps


class Background:
    """The background work of one client. Except in a cluster, the commands of this work are sent one after
    the other, so that a RELEASE follows its ACQUIRE. `is_member`: whether the client is a member of a
    quorum."""

    def __init__(self, client: Any, is_member: bool) -> None:
        self.client = client
        self._member_connection = MemberConnection(client) if is_member else None
        # The tasks that the clock wakes, by their ids.
        self.tasks: dict[int, Task] = {}
        # Whether this object was used since the clock last checked all tasks.
        self.used = True
        # Guards `_worker` and `registry`.
        self._lock = threading.Lock()
        # The steps to carry out, and the task that returned them, if any.
        self._jobs: queue.SimpleQueue[tuple[Steps, Task | None]] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        # The client or member connection that the background uses. None until its first use.
        self._background_client: Any = None
        self.registry: WaitRegistry | None = None

    def is_idle(self) -> bool:
        return not self.tasks and self._jobs.empty() and self._worker is None and self.registry is None

    def peer(self) -> Peer:
        """Returns the server at the other end of a member's connection."""
        assert self._member_connection is not None
        return self._member_connection.peer

    # Renewals and owed commands.

    def submit(self, steps: Steps, task: Task | None = None) -> None:
        if is_cluster(self.client):
            # The steps get a thread of their own: a node that hangs must not delay requests to other nodes.
            try:
                _start(self._carry_out, "dlock-renewal", steps, task)
            except BaseException:
                if task is not None:
                    task.steps_ended()
                raise
        else:
            self._jobs.put((steps, task))
            self.ensure_worker()

    def ensure_worker(self) -> None:
        """Starts the worker thread if there is work. The clock calls this, too, in case an earlier call could
        not start a thread."""
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
                    # The next worker must not use the connection while it is closed here.
                    disconnect = self._take_connection()
                    self._worker = None
                    break
            self._carry_out(steps, task)
        disconnect()
        _clock.recheck()

    def _take_connection(self) -> Callable[[], object]:
        """Returns a function that closes the connection. The next command connects anew."""
        if self._member_connection is not None:
            return self._member_connection.take()
        client, self._background_client = self._background_client, None
        if client is None or client is self.client:
            return lambda: None
        return client.connection_pool.disconnect  # type: ignore[no-any-return]

    def _carry_out(self, steps: Steps, task: Task | None) -> None:
        try:
            if self._background_client is None:
                self._background_client = (
                    own_client(self.client) if self._member_connection is None else self._member_connection
                )
            run(steps, self._background_client)
        except Exception:
            logger.exception("a renewal or a release failed")
        finally:
            if task is not None:
                task.steps_ended()
        _clock.recheck()

    # Messages.

    def listen(self) -> Wait:
        with self._lock:
            if self.registry is None:
                registry = WaitRegistry(threading.Event)
                try:
                    _start(self._listen, "dlock-messages", registry)
                except RuntimeError as why:
                    # No thread can be started, for example at the exit of the interpreter. This wait polls.
                    logger.debug("not listening: %s", why)
                    registry.on_disconnected()
                    return registry.open()
                self.registry = registry
            return self.registry.open()

    def _listen(self, registry: WaitRegistry) -> None:
        while not self._close_if_idle(registry):
            pubsub = None
            try:
                client = own_client(self.client)
                pubsub = client.pubsub()
                pubsub.subscribe(registry.channel)
                while not self._close_if_idle(registry):
                    registry.on_message(pubsub.get_message(timeout=LIMIT))
                    action = registry.next_action()
                    if action == "ping":
                        pubsub.ping()
                    elif action == "reconnect":
                        break
            except Exception as why:
                logger.debug("not listening: %s", why)
                # Wakes the waits before the pause.
                registry.on_disconnected()
                time.sleep(LIMIT / 2)
            finally:
                registry.on_disconnected()
                if pubsub is not None:
                    with contextlib.suppress(Exception):
                        pubsub.close()
        _clock.recheck()

    def _close_if_idle(self, registry: WaitRegistry) -> bool:
        """Closes an idle registry: the next wait opens another one. Returns whether the registry is
        closed."""
        with self._lock:
            if registry.is_idle() and self.registry is registry:
                self.registry = None
            return self.registry is not registry


class Clock:
    """The thread that wakes each background task of the process when the task is due. This thread does no
    I/O, so that nothing delays it."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._backgrounds: dict[tuple[int, bool], Background] = {}
        # Time of the next check of all tasks.
        self._next_check = float("inf")
        self._thread: threading.Thread | None = None

    def background(self, client: Any, *, is_member: bool = False) -> Background:
        with self._changed:
            return self._background(client, is_member)

    def watch(self, task: Task, client: Any, *, is_member: bool = False) -> None:
        with self._changed:
            tasks = self._background(client, is_member).tasks
            tasks[id(task)] = task
            task.forget = functools.partial(tasks.pop, id(task), None)
            if task.wake_at() < self._next_check:
                self._next_check = 0
                self._changed.notify()

    def _background(self, client: Any, is_member: bool) -> Background:
        # Clients with the same connection pool share a background.
        key = _pool_id(client), is_member
        found = self._backgrounds.get(key)
        if found is None:
            found = self._backgrounds[key] = Background(client, is_member)
        found.used = True
        if self._thread is None:
            self._thread = _start(self._run, "dlock-clock")
        return found

    def reconnect_subscriber(self, client: Any) -> None:
        with self._changed:
            for is_member in False, True:
                found = self._backgrounds.get((_pool_id(client), is_member))
                registry = None if found is None else found.registry
                if registry is not None:
                    registry.must_reconnect = True

    def recheck(self) -> None:
        """Makes the clock check all tasks now."""
        with self._changed:
            self._next_check = 0
            self._changed.notify()

    def _run(self) -> None:
        while True:
            due = []
            with self._changed:
                self._next_check = float("inf")
                for key, background in list(self._backgrounds.items()):
                    try:
                        background.ensure_worker()
                    except RuntimeError:
                        # No thread could be started. The clock tries again soon.
                        self._next_check = min(self._next_check, now() + TICK / 10)
                    for task_id, task in list(background.tasks.items()):
                        if task.finished():
                            background.tasks.pop(task_id, None)
                        elif task.wake_at() <= now():
                            due.append((task, background))
                        else:
                            self._next_check = min(self._next_check, task.wake_at())
                    # A background that was used since the last check stays until the next check, even if it
                    # is idle: otherwise each acquisition of a loop would create a new background.
                    self._next_check = min(self._next_check, now() + TICK)
                    if background.is_idle() and not background.used:
                        del self._backgrounds[key]
                    background.used = False
                if not due:
                    self._changed.wait(
                        None if self._next_check == float("inf") else max(self._next_check - now(), 0)
                    )
                    continue
            for task, background in due:
                # Catches any exception, even `sys.exit` in an `on_lost`: the clock must wake the other tasks.
                try:
                    steps = task.wake()
                    if steps is not None:
                        background.submit(steps, task)
                except BaseException:
                    logger.exception("a background task failed")


def _pool_id(client: Any) -> int:
    return id(getattr(client, "connection_pool", client))


def _start(target: Any, name: str, *args: Any) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, args=args, daemon=True)
    thread.start()
    return thread


def _forked() -> None:
    """Gives a forked child a new clock. The threads and their work stay in the parent."""
    global _clock
    _clock = Clock()


_clock = Clock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
