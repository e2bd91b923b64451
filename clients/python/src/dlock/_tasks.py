"""Carries out steps (see `_steps.py`) in an event loop. The background work of each client (renewals, owed
commands, messages) has connections of its own with short time limits, as in `_threads.py`. An owed command
is a RELEASE or CANCEL that the background repeats until the server has confirmed it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Coroutine
from typing import Any, Callable

from ._clients import (
    AsyncMemberConnection,
    close_idle_connections,
    is_cluster,
    own_async_client,
    translated,
)
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

# Pause in seconds after an asyncio task of the background is cancelled, because the event loop may be
# shutting down. During the pause, no `Task` (a hold to renew, or an owed command) is woken.
PAUSE_AFTER_CANCEL = 0.1


async def run(steps: Steps, client: Any) -> Any:
    """Carries out `steps` over `client`, in this task."""
    # redis-py can swallow a CancelledError, and so can `wait_for` before Python 3.12. From Python 3.11 on,
    # `Task.cancelling` counts the cancellations, so that a swallowed one is raised here. Before Python 3.11,
    # `cancelling` is `int`, which returns 0, so a swallowed cancellation is lost, and the steps continue.
    cancelling = getattr(asyncio.current_task(), "cancelling", int)
    cancellations_seen = cancelling()
    failure: BaseException | None = None
    try:
        step = next(steps)
        while True:
            try:
                if type(step) is tuple:
                    outcome = await client.execute_command(*step)
                else:
                    outcome = await _perform(step, client)
            except BaseException as why:
                failure = translated(why)
            else:
                failure = None
            if cancelling() > cancellations_seen and not isinstance(failure, asyncio.CancelledError):
                failure = asyncio.CancelledError()
            cancellations_seen = cancelling()
            step = steps.send(outcome) if failure is None else steps.throw(failure)
    except StopIteration as end:
        return end.value
    finally:
        # Breaks a reference cycle: the error's traceback refers to this frame, and `failure` to the error.
        failure = None


async def _perform(step: Any, client: Any) -> Any:
    if isinstance(step, Pause):
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(step.wait.event.wait(), step.seconds)
    elif isinstance(step, Sleep):
        await asyncio.sleep(step.seconds)
    elif isinstance(step, WhichPeer):
        return client.peer
    elif isinstance(step, Listen):
        return background(client if step.member == SINGLE else client.members[step.member]).listen()
    elif isinstance(step, Watch):
        background(client).watch(step.hold)
    elif isinstance(step, Ask):
        return await _ask(step, client)
    elif isinstance(step, Reconnect):
        await _reconnect(client)
    elif isinstance(step, Begin):
        if step.member is None:
            # The steps send no commands themselves, so any member's background can own their asyncio task.
            background(step.quorum.members[0], is_member=True).start(run(step.steps, step.quorum))
        else:
            background(step.quorum.members[step.member], is_member=True).submit(step.steps)
    elif isinstance(step, Owe):
        answer_arrived = asyncio.Event()
        for member, owed in step.owed.items():
            owed.on_answer = answer_arrived.set
            if member == SINGLE:
                background(client).watch(owed)
            else:
                background(client.members[member], is_member=True).watch(owed)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_wait_until(answer_arrived, step.enough), PATIENCE)


async def _reconnect(client: Any) -> None:
    if isinstance(client, AsyncMemberConnection):
        await client.disconnect()
        return
    with contextlib.suppress(Exception):
        closing = close_idle_connections(client)
        if closing is not None:
            await closing
    for is_member in False, True:
        found = _backgrounds.get(_background_key(client, is_member))
        if found is not None and found.registry is not None:
            found.registry.must_reconnect = True


async def _ask(step: Ask, client: Any) -> Answers:
    answers: Answers = {}
    answer_arrived = asyncio.Event()

    def report(member: int, member_background: Background, answer: Any) -> Steps | None:
        next_steps = step.on_answer(member, answer, member_background.peer())
        answers[member] = answer
        answer_arrived.set()
        return next_steps

    for member, question in step.questions.items():
        member_background = background(client.members[member], is_member=True)
        member_background.submit(reporting(question, functools.partial(report, member, member_background)))
    with contextlib.suppress(asyncio.TimeoutError):
        decided = _wait_until(
            answer_arrived, lambda: len(answers) == len(step.questions) or step.enough(dict(answers))
        )
        await asyncio.wait_for(decided, ASK_LIMIT)
    return dict(answers)


async def _wait_until(event: asyncio.Event, enough: Callable[[], bool]) -> None:
    while not enough():
        await event.wait()
        event.clear()


class Background:
    """The background work of one client in one event loop. `is_member`: whether the client is a member of a
    quorum. `forget` removes this object from `_backgrounds`."""

    def __init__(self, client: Any, is_member: bool, forget: Callable[[], object]) -> None:
        # This reference keeps the client and its pool alive, so that no new object gets the id in the key of
        # `_backgrounds`.
        self.client = client
        self.loop = asyncio.get_running_loop()
        self._member_connection = AsyncMemberConnection(client) if is_member else None
        self._forget = forget
        # The client or member connection that the background uses. None until its first use.
        self._background_client: Any = None
        # Whether steps were submitted since `_disconnect` last checked.
        self._used = False
        self._command_lock = asyncio.Lock()
        self.registry: WaitRegistry | None = None
        # The running asyncio tasks of this object.
        self._tasks: set[asyncio.Task[Any]] = set()
        # No `Task` is woken before this time (a value of `now()`).
        self._paused_until = 0.0
        # The timer of each watched `Task`, by its id.
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def peer(self) -> Peer:
        """Returns the server at the other end of a member's connection."""
        assert self._member_connection is not None
        return self._member_connection.peer

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.loop.create_task(work)
        # The event loop has only weak references to its tasks.
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            # The loop may be shutting down: it would drop a task that begins now.
            self._paused_until = now() + PAUSE_AFTER_CANCEL
            return
        if task.exception() is not None:
            logger.error("a background task failed", exc_info=task.exception())
        self._disconnect_if_idle()

    def _disconnect_if_idle(self) -> None:
        """If no work is left, starts closing the connection. Without a connection to close, removes this
        object from `_backgrounds`. Called again when the connection is closed."""
        if self._timers or self._tasks:
            return
        if self._background_client is None or self._background_client is self.client:
            self._forget()
        elif not self.loop.is_closed():
            self.start(self._disconnect())

    async def _disconnect(self) -> None:
        # The connection to a member stays open for at least `IDLE` seconds after its last use. Otherwise each
        # acquisition in a loop would connect anew.
        try:
            while self._member_connection is not None and (
                self._used or self._timers or len(self._tasks) > 1
            ):
                self._used = False
                await asyncio.sleep(IDLE)
        finally:
            client, self._background_client = self._background_client, None
            with contextlib.suppress(Exception):
                # redis-py raises an error if a busy server does not close the connection in time.
                await (client if self._member_connection is not None else client.connection_pool).disconnect()

    # Renewals and owed commands.

    def watch(self, task: Task) -> None:
        """Wakes the task whenever it is due, until it is finished."""
        self._arm(task)
        # The task calls `forget` when it is finished: then `_arm` drops the task.
        task.forget = functools.partial(self._arm, task)

    def _arm(self, task: Task) -> None:
        """Sets the timer of the task anew, or drops the task if it is finished."""
        timer = self._timers.pop(id(task), None)
        if timer is not None:
            timer.cancel()
        if task.finished():
            self._disconnect_if_idle()
        else:
            pause = min(max(self._wake_at(task) - now(), 0), TICK)
            self._timers[id(task)] = self.loop.call_later(pause, self._check, task)

    def _wake_at(self, task: Task) -> float:
        return max(task.wake_at(), self._paused_until)

    def _check(self, task: Task) -> None:
        if not task.finished() and self._wake_at(task) <= now():
            steps = task.wake()
            if steps is not None:
                self.submit(steps, task)
        # Sets the next timer before the steps end: while a renewal hangs, `wake` must still report a loss.
        self._arm(task)

    def submit(self, steps: Steps, task: Task | None = None) -> None:
        self._used = True
        running = self.start(self._carry_out(steps))
        if task is not None:
            # This is a callback and not part of the coroutine: a coroutine that is cancelled before it
            # starts never runs, not even its `finally`.
            running.add_done_callback(lambda _: self._steps_ended(task))

    def _steps_ended(self, task: Task) -> None:
        task.steps_ended()
        self._arm(task)

    async def _carry_out(self, steps: Steps) -> None:
        if is_cluster(self.client):
            # A node that hangs must not delay requests to other nodes.
            await run(steps, self._get_background_client())
        else:
            # One command at a time, so that a RELEASE follows its ACQUIRE.
            async with self._command_lock:
                await run(steps, self._get_background_client())

    def _get_background_client(self) -> Any:
        if self._background_client is None:
            self._background_client = (
                own_async_client(self.client) if self._member_connection is None else self._member_connection
            )
        return self._background_client

    # Messages.

    def listen(self) -> Wait:
        if self.registry is None:
            self.registry = WaitRegistry(asyncio.Event)
            self.start(self._listen(self.registry))
        return self.registry.open()

    async def _listen(self, registry: WaitRegistry) -> None:
        try:
            while not registry.is_idle():
                try:
                    await self._receive_messages(registry)
                except Exception as why:
                    # This error may have replaced a CancelledError, as `Task.cancelling` shows from Python
                    # 3.11 on. Before Python 3.11, this task continues until the registry is idle.
                    if getattr(asyncio.current_task(), "cancelling", int)():
                        break
                    logger.debug("not listening: %s", why)
                    registry.on_disconnected()
                    await asyncio.sleep(LIMIT / 2)
        finally:
            self.registry = None
            registry.on_disconnected()

    async def _receive_messages(self, registry: WaitRegistry) -> None:
        client = own_async_client(self.client, subscribes=True)
        pubsub = client.pubsub()
        try:
            await pubsub.subscribe(registry.channel)
            while not registry.is_idle():
                registry.on_message(await pubsub.get_message(timeout=LIMIT))
                action = registry.next_action()
                if action == "ping":
                    await pubsub.ping()
                elif action == "reconnect":
                    break
        finally:
            registry.on_disconnected()
            await _close(pubsub)
            with contextlib.suppress(Exception):
                await client.connection_pool.disconnect()


# The key: the id of the client's connection pool (of the client itself if it has no pool), the id of the
# event loop, and whether the client is a member of a quorum.
_backgrounds: dict[tuple[int, int, bool], Background] = {}


def background(client: Any, *, is_member: bool = False) -> Background:
    """Returns the background of this client in this event loop. Clients with the same connection pool share
    one."""
    loop = asyncio.get_running_loop()
    key = _background_key(client, is_member)
    found = _backgrounds.get(key)
    if found is None or found.loop is not loop:
        for known, old in list(_backgrounds.items()):
            if old.loop.is_closed():
                del _backgrounds[known]
        found = _backgrounds[key] = Background(client, is_member, lambda: _backgrounds.pop(key, None))
    return found


def _background_key(client: Any, is_member: bool) -> tuple[int, int, bool]:
    return id(getattr(client, "connection_pool", client)), id(asyncio.get_running_loop()), is_member


async def _close(pubsub: Any) -> None:
    with contextlib.suppress(Exception):
        # aclose() from redis-py 5.0.1 on.
        await getattr(pubsub, "aclose", pubsub.close)()
