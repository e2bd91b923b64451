"""Carries out steps (see `_steps.py`) in an event loop. The background work of each client (renewals, owed
commands, messages) has connections of its own with short time limits, as in `_threads.py`: a `Link` renews
and releases, and a `Subscriber` receives messages. One timer of the loop wakes all tasks when they are
due."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import math
import threading
import weakref
from collections.abc import Coroutine
from typing import Any, Callable

from redis.exceptions import TimeoutError

from ._clients import (
    AsyncPipe,
    close_idle_connections,
    connections_at_once,
    disconnect,
    execute_at,
    is_cluster,
    node_client,
    own_async_client,
    sentinels,
    separate_async_client,
    translated,
)
from ._clock import now
from ._hold import ClusterLossWatch, Hold, LossWatch, logger
from ._protocol import NO_ANSWER, Args, Reconnect, Steps
from ._schedule import Job, LinkCore, Schedule, TurnsCore, link_key, pool_id
from ._sentinel import Lookout
from ._steps import (
    ASK_LIMIT,
    LIMIT,
    LINK_IDLE,
    MOST_AT_ONCE,
    PATIENCE,
    SINGLE,
    TICK,
    Answers,
    Ask,
    AtKey,
    Begin,
    Close,
    FindMaster,
    LeaveMaster,
    Listen,
    NoTurnError,
    Over,
    Owe,
    Pause,
    SeparateClient,
    Sleep,
    Task,
    TurnLimit,
    Watch,
    WatchLoss,
    WhichPeer,
    asking,
    sending,
)
from ._waits import Wait, WaitRegistry

# Pause in seconds after an asyncio task of the background is cancelled, because the event loop may be
# shutting down. During the pause, no `Task` (a hold to renew, or an owed command) is woken.
PAUSE_AFTER_CANCEL = 0.1

# Turns of the event loop in which an answer that has arrived reaches the task that awaits it.
TURNS_TO_READ = 4


class Signal:
    """An event for which one task waits. A wait of `asyncio.Event` with a time limit costs a task before
    Python 3.12."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def is_set(self) -> bool:
        return self._is_set

    def clear(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        if self._waiter is not None:
            _finish(self._waiter)

    async def wait(self, seconds: float) -> bool:
        """Waits until the event is set, at most for `seconds`. Returns whether it is set."""
        if not self._is_set:
            loop = asyncio.get_running_loop()
            waiter = self._waiter = loop.create_future()
            timer = loop.call_later(max(seconds, 0), _finish, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiter = None
        return self._is_set


def _finish(waiter: asyncio.Future[Any], result: object = None) -> None:
    if not waiter.done():
        waiter.set_result(result)


class Turns(TurnsCore):
    """The right of the callers to send this many commands at once over a connection pool. A pool with a limit
    raises an error for each further command."""

    def __init__(self, free: int) -> None:
        self.free = free
        self._waiters: collections.deque[asyncio.Future[bool]] = collections.deque()

    async def wait(self, began: float, limit: float) -> None:
        """Waits for a turn, and takes it. ``began``: the present time. ``limit``: see `TurnLimit`."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._waiters.append(waiter)
        timer = None
        if limit < math.inf:
            timer = loop.call_later(max(limit - began, 0), _finish, waiter, False)
        try:
            if not await waiter:
                raise NoTurnError("no connection was free for this call within its time limit")
            self.raise_failure(began)
        except BaseException:
            if waiter.done() and not waiter.cancelled() and waiter.result():
                self.give()
            else:
                with contextlib.suppress(ValueError):  # removed already
                    self._waiters.remove(waiter)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def give(self) -> None:
        """Gives a turn back, or to the caller that has waited for the longest time."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(True)
                return
        self.free += 1


def raise_swallowed() -> None:
    """Raises the cancellation of this task if redis-py has swallowed it: see `run`."""
    if getattr(asyncio.current_task(), "cancelling", int)():
        raise asyncio.CancelledError


async def run(steps: Steps, client: Any) -> Any:
    """Carries out `steps` over `client`, in this task."""
    # redis-py can swallow a CancelledError, and so can `wait_for` before Python 3.12. From Python 3.11 on,
    # `Task.cancelling` counts the cancellations, so that a swallowed one is raised here. Before Python 3.11,
    # `cancelling` is `int`, which returns 0, so a swallowed cancellation is lost, and the steps continue.
    cancelling = getattr(asyncio.current_task(), "cancelling", int)
    cancellations_seen = cancelling()
    failure: BaseException | None = None
    turns: Turns | None = None
    limit = math.inf
    try:
        step = next(steps)
        while True:
            try:
                if type(step) is tuple:
                    turns = background().turns(client) if turns is None else turns
                    outcome = await _send(step, client, turns, limit)
                elif type(step) is TurnLimit:
                    outcome, limit = None, step.end
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


async def _send(command: Args, client: Any, turns: Turns, limit: float) -> Any:
    """Sends a command over the pool of the client once it has a turn, and returns the reply."""
    sent = now()
    if turns.free:
        turns.free -= 1
    else:
        if command[0] == "DLOCK.RELEASE" and hasattr(client, "connection_pool"):
            # A hold that is not renewed could end before the turn of its release.
            with contextlib.suppress(*NO_ANSWER):
                return await _send_in_background(command, client)
        await turns.wait(sent, limit)
        sent = now()
    answered = turns.answered
    try:
        outcome = await client.execute_command(*command)
        turns.answered = sent
        return outcome
    except Exception as why:
        # The nodes of a cluster fail one by one.
        if hasattr(client, "connection_pool"):
            turns.note_failure(sent, answered, translated(why))
        raise
    finally:
        turns.give()


async def _perform(step: Any, client: Any) -> Any:
    if isinstance(step, Pause):
        await step.wait.event.wait(step.seconds)
    elif isinstance(step, Sleep):
        await asyncio.sleep(step.seconds)
    elif isinstance(step, AtKey):
        return await execute_at(client, step.key, step.command)
    elif isinstance(step, WhichPeer):
        return client.peer
    elif isinstance(step, Listen):
        return background().listen(client if step.member == SINGLE else client.members[step.member])
    elif isinstance(step, Watch):
        if step.may_refuse and is_cluster(client):
            return False
        background().watch(step.task, client)
        return True
    elif isinstance(step, Ask):
        return await _ask(step, client.members.__getitem__)
    elif isinstance(step, WatchLoss):
        watch_loss(step.hold, client)
    elif isinstance(step, Reconnect):
        await _reconnect(client)
    elif isinstance(step, FindMaster):
        return await step.client.connection_pool.get_master_address()
    elif isinstance(step, LeaveMaster):
        background().leave_master(step.client)
        await _reconnect(step.client)
    elif isinstance(step, Over):
        return await step.client.execute_command(*step.command)
    elif isinstance(step, SeparateClient):
        return separate_async_client(client, step.seconds, step.key)
    elif isinstance(step, Close):
        await disconnect(step.client)
    elif isinstance(step, Begin):
        if step.member is None:
            # The steps send no commands themselves: they ask members.
            background().start(run(step.steps, step.quorum))
        else:
            background().submit(step.steps, step.quorum.members[step.member], is_member=True)
    elif isinstance(step, Owe):
        await _owe(step, client)


def watch_loss(hold: Hold, client: Any) -> None:
    """Watches a hold on the server, unless it is watched already. Not over a quorum."""
    if hold.loss_watch is not None or hold.over:
        return

    def watch_at(node: Any, on_away: Callable[[], object] | None = None) -> LossWatch:
        watch = LossWatch(hold, background().registry(node), on_away)
        background().watch(watch, node)
        return watch

    if hasattr(client, "connection_pool"):
        hold.loss_watch = watch_at(client)
    elif is_cluster(client):
        find_node = functools.partial(node_client, client, hold.key)
        hold.loss_watch = ClusterLossWatch(hold, client, find_node, watch_at)
        background().watch(hold.loss_watch, client)


async def _owe(step: Owe, client: Any) -> None:
    # The background repeats each owed command (a RELEASE or CANCEL) until the server has confirmed it. This
    # task waits for the first answers.
    answer_arrived = Signal()
    links = []
    for member, owed in step.owed.items():
        owed.on_answer = answer_arrived.set
        to = client if member == SINGLE else client.members[member]
        links.append((owed, background().watch(owed, to, is_member=member != SINGLE)))
    end = now() + PATIENCE
    while not step.enough():
        if await answer_arrived.wait(end - now()):
            answer_arrived.clear()
            continue
        await _read_answers()
        # The limit counts from when a command goes out, and any answer is a sign of life.
        alive_at = max((link.alive_at() for owed, link in links if owed.is_awaited()), default=-math.inf)
        if now() >= alive_at + PATIENCE:
            break
        end = alive_at + PATIENCE


async def _read_answers() -> None:
    """Lets the event loop read the answers that have arrived while it was busy, and pass them on."""
    for _ in range(TURNS_TO_READ):
        await asyncio.sleep(0)


async def _reconnect(client: Any) -> None:
    if isinstance(client, AsyncPipe):
        await client.disconnect()
    else:
        with contextlib.suppress(Exception):
            closing = close_idle_connections(client)
            if closing is not None:
                await closing
    background().reconnect_subscriber(client)


async def _send_in_background(command: Args, client: Any) -> Any:
    """Sends a command over the connection of the background, and returns the reply."""
    step = Ask({SINGLE: sending(command)}, lambda answers: False, lambda *_: None)
    answers = await _ask(step, lambda _: client, is_member=False)
    answer = answers.get(SINGLE, TimeoutError("no answer in time"))
    if isinstance(answer, Exception):
        raise answer
    return answer


async def _ask(step: Ask, client_of: Callable[[int], Any], *, is_member: bool = True) -> Answers:
    answers: Answers = {}
    answer_arrived = Signal()

    links = {
        member: background().submit(steps, client_of(member), is_member=is_member)
        for member, steps in asking(step, answers, answer_arrived.set)
    }
    end = now() + ASK_LIMIT
    while len(answers) < len(step.questions) and not step.enough(dict(answers)):
        if await answer_arrived.wait(end - now()):
            answer_arrived.clear()
            continue
        await _read_answers()
        # The limit counts from when a command goes out, and any answer is a sign of life.
        alive_at = (link.alive_at() for member, link in links.items() if member not in answers)
        end = max(alive_at, default=math.inf) + ASK_LIMIT
        if now() >= end:
            break
    return dict(answers)


async def _advance(job: Job, client: Any) -> Args | None:
    """Continues the steps of a job until their next command. Returns None once they have ended."""
    while True:
        step = job.resume()
        if step is None or type(step) is tuple:
            return step
        try:
            job.outcome = await _perform(step, client)
        except Exception as why:
            job.outcome = translated(why)


class Link(LinkCore):
    """The connection of the background to one server. The commands of all jobs that are ready are sent
    together, in one pipeline. So a RELEASE follows its ACQUIRE, and a command waits for one round trip at
    most before it is sent."""

    def __init__(self, client: Any, is_member: bool, owner: Background) -> None:
        super().__init__(client, is_member)
        self._owner = owner
        self._jobs: collections.deque[Job] = collections.deque()
        self._ready = Signal()
        self._worker: asyncio.Task[None] | None = None
        # None until its first use. In a cluster, a client with connections of its own to each node. For a
        # quorum, the quorum.
        self._pipe: Any = None

    def alive_at(self) -> float:
        """Returns the time from which a limit for the answers of the server counts."""
        if isinstance(self._pipe, AsyncPipe):
            return self._pipe.alive_at()
        return -math.inf if self._worker is None else now()

    def submit(self, job: Job) -> None:
        if is_cluster(self.client) or not hasattr(self.client, "connection_pool"):
            # In a cluster, a node that hangs must not delay requests to other nodes. The steps for a quorum
            # ask its members, and those of a lookout the sentinels.
            if self._pipe is None:
                self._pipe = own_async_client(self.client) if is_cluster(self.client) else self.client
            running = self._owner.start(run(job.steps, self._pipe))
            # This is a callback and not part of the coroutine: a coroutine that is cancelled before it starts
            # never runs, not even its `finally`.
            running.add_done_callback(lambda _: self._ended(job))
            return
        self._jobs.append(job)
        self.wake()

    def wake(self) -> None:
        """Called when there is a job, or no task is left."""
        self._ready.set()
        if self._worker is None and self.is_idle():
            self._owner.remove(self)
        if self._worker is None and self._jobs:
            self._worker = self._owner.start(self._work())
            self._worker.add_done_callback(self._worker_ended)

    def _worker_ended(self, worker: asyncio.Task[None]) -> None:
        self._worker = None
        if self._jobs and not self._owner.loop.is_closed():
            # The worker was cancelled. The loop may be shutting down: it would drop a task that begins now.
            self._owner.loop.call_later(PAUSE_AFTER_CANCEL, self.wake)

    def is_idle(self) -> bool:
        return not self._jobs and not self.tasks

    async def _work(self) -> None:
        try:
            while True:
                while self._jobs:
                    await self._carry_out()
                raise_swallowed()
                if not self.tasks and not self.is_member:
                    break
                # The connection to a member stays open for a while after its last use. Otherwise each
                # acquisition in a loop would connect anew.
                self._ready.clear()
                if not await self._ready.wait(LINK_IDLE) and self.is_idle():
                    break
        finally:
            if self.is_idle():
                self._owner.remove(self)
            with contextlib.suppress(Exception):
                # redis-py raises an error if a busy server does not close the connection in time.
                if self._pipe is not None:
                    await self._pipe.close()

    async def _carry_out(self) -> None:
        """Carries out jobs until none is left."""
        if self._pipe is None:
            self._pipe = AsyncPipe(self.client, self.is_member)
        running: list[Job] = []
        try:
            while running or self._jobs:
                while self._jobs and len(running) < MOST_AT_ONCE:
                    running.append(self._jobs.popleft())
                waiting: list[Job] = []
                commands: list[Args] = []
                for each in running:
                    command = await self._advance(each)
                    if command is not None:
                        waiting.append(each)
                        commands.append(command)
                running = waiting
                if commands:
                    for each, outcome in zip(waiting, await self._pipe.execute(commands)):
                        each.outcome = outcome
                    raise_swallowed()
        except BaseException as why:
            # The worker was cancelled. The tasks of these jobs try again.
            for each in running:
                with contextlib.suppress(BaseException):
                    each.steps.throw(why)
                self._ended(each)
            raise

    async def _advance(self, job: Job) -> Args | None:
        command = None
        try:
            command = await _advance(job, self._pipe)
        except Exception:
            logger.exception("a renewal or a release failed")
        if command is None:
            self._ended(job)
        return command

    def _ended(self, job: Job) -> None:
        if job.task is not None:
            job.task.steps_ended()
            self._owner.reschedule(job.task, self)


class Background:
    """The background work in one event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._schedule = Schedule()
        # By the id of the connection pool, as clients with the same pool share a link, and `is_member`.
        self._links: dict[tuple[int, bool], Link] = {}
        # By the id of the connection pool.
        self.registries: dict[int, WaitRegistry] = {}
        # By the id of the connection pool: behind Sentinel, while there is a link or a registry.
        self._lookouts: dict[int, Lookout] = {}
        # The running asyncio tasks of this object.
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        # No `Task` is woken before this time (a value of `now()`).
        self._paused_until = 0.0
        # By pool.
        self._turns: weakref.WeakKeyDictionary[Any, Turns] = weakref.WeakKeyDictionary()

    def turns(self, client: Any) -> Turns:
        pool = getattr(client, "connection_pool", client)
        turns = self._turns.get(pool)
        if turns is None:
            turns = self._turns[pool] = Turns(connections_at_once(pool))
        return turns

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
        elif task.exception() is not None:
            logger.error("a background task failed", exc_info=task.exception())

    # Renewals and owed commands.

    def watch(self, task: Task, client: Any, *, is_member: bool = False) -> Link:
        """Wakes the task whenever it is due, until it is finished."""
        link = self._link(client, is_member)
        link.tasks.add(id(task))
        task.changed = functools.partial(self._changed, task, link)
        if max(task.wake_at(), self._paused_until) <= now():
            self._wake(task, link)
        else:
            self.reschedule(task, link)
        return link

    def submit(self, steps: Steps, client: Any, *, is_member: bool) -> Link:
        """Carries out steps in the background."""
        link = self._link(client, is_member)
        link.submit(Job(steps, None))
        return link

    def remove(self, link: Link) -> None:
        if self._links.get(link.key) is link:
            del self._links[link.key]

    def reschedule(self, task: Task, link: Link) -> None:
        """Called when the task may be due earlier than before, or finished."""
        if task.finished():
            self._schedule.remove(task)
            link.tasks.discard(id(task))
            task.changed = None
            if link.is_idle():
                link.wake()
        elif id(task) in link.tasks and self._schedule.set(task, task.wake_at(), link):
            self._set_timer()

    def _changed(self, task: Task, link: Link) -> None:
        if threading.get_ident() == self._thread:
            self.reschedule(task, link)
        else:
            # Another thread has found a loss.
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self.reschedule, task, link)

    def _link(self, client: Any, is_member: bool) -> Link:
        key = link_key(client, is_member)
        link = self._links.get(key)
        if link is None:
            link = self._links[key] = Link(client, is_member, self)
        if not is_member:
            self._look_out(client)
        return link

    def _look_out(self, client: Any) -> None:
        """Begins to look out for another master behind Sentinel, unless that has begun."""
        manager = sentinels(client)
        if manager is not None and pool_id(client) not in self._lookouts:
            lookout = Lookout(client, functools.partial(self._is_used, client))
            self._lookouts[pool_id(client)] = lookout
            self.watch(lookout, manager)

    def _is_used(self, client: Any) -> bool:
        """Returns whether there is a link or a registry. If not, the lookout ends."""
        is_used = link_key(client, False) in self._links or pool_id(client) in self.registries
        if not is_used:
            self._lookouts.pop(pool_id(client), None)
        return is_used

    def leave_master(self, client: Any) -> None:
        """Called when another server has become the master of the client."""
        link = self._links.get(link_key(client, False))
        if link is None:
            return
        if link._pipe is not None:
            link._pipe.must_reconnect = True
        for task in self._schedule.tasks_at(link):
            if isinstance(task, Hold):
                task.master_changed()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._schedule and not self.loop.is_closed():
            due = max(self._schedule.next_at(), self._paused_until)
            # Timers stop while the machine is suspended, so the loop reads the clock every second.
            self._timer = self.loop.call_later(min(max(due - now(), 0), TICK), self._run)

    def _run(self) -> None:
        self._timer = None
        time = now()
        while self._paused_until <= time:
            found = self._schedule.pop(time)
            if found is None:
                break
            task, link = found
            if not task.finished() and task.wake_at() <= time:
                self._wake(task, link)
            else:
                self.reschedule(task, link)
        self._set_timer()

    def _wake(self, task: Task, link: Link) -> None:
        try:
            work = task.wake()
            if callable(work):
                work()
            elif work is not None:
                link.submit(Job(work, task))
        except Exception:
            logger.exception("a background task failed")
        # Before the steps end: while a renewal hangs, `wake` must still report a loss.
        self.reschedule(task, link)

    # Messages.

    def listen(self, client: Any) -> Wait:
        return self.registry(client).open()

    def registry(self, client: Any) -> WaitRegistry:
        """Returns the registry of the client's subscription, and starts one if there is none."""
        registry = self.registries.get(pool_id(client))
        if registry is None:
            registry = self.registries[pool_id(client)] = WaitRegistry(Signal)
            self.start(self._listen(client, registry))
            self._look_out(client)
        # The subscription does not end before the caller has opened its wait or watch.
        registry.idle_since = now()
        return registry

    def reconnect_subscriber(self, client: Any) -> None:
        registry = self.registries.get(pool_id(client))
        if registry is not None:
            registry.must_reconnect = True

    async def _listen(self, client: Any, registry: WaitRegistry) -> None:
        try:
            while not registry.is_idle():
                try:
                    await self._receive_messages(client, registry)
                except Exception as why:
                    # This error may have replaced a CancelledError, as `Task.cancelling` shows from Python
                    # 3.11 on. Before Python 3.11, this task continues until the registry is idle. Or it has
                    # replaced a GeneratorExit: the loop was closed before this task has ended.
                    if self.loop.is_closed() or getattr(asyncio.current_task(), "cancelling", int)():
                        break
                    logger.debug("not listening: %s", why)
                    registry.on_disconnected()
                    await asyncio.sleep(LIMIT / 2)
        finally:
            del self.registries[pool_id(client)]
            registry.on_disconnected()

    async def _receive_messages(self, user_client: Any, registry: WaitRegistry) -> None:
        client = own_async_client(user_client, subscribes=True, on_id=registry.on_client_id)
        pubsub = client.pubsub()
        try:
            for channel in registry.channels():
                await pubsub.subscribe(channel)
            while not registry.is_idle():
                try:
                    registry.on_message(await pubsub.get_message(timeout=LIMIT))
                except Exception as why:
                    if not registry.on_error(translated(why)):
                        raise
                action = registry.next_action()
                if action == "ping":
                    await pubsub.ping()
                elif action == "reconnect":
                    break
        finally:
            registry.on_disconnected()
            if not self.loop.is_closed():
                await _close(pubsub)
                with contextlib.suppress(Exception):
                    await client.connection_pool.disconnect()


# One for each event loop.
_backgrounds: dict[asyncio.AbstractEventLoop, Background] = {}


def background() -> Background:
    """Returns the background of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _backgrounds.get(loop)
    if found is None:
        for known in list(_backgrounds):
            if known.is_closed():
                del _backgrounds[known]
        found = _backgrounds[loop] = Background()
    return found


async def _close(pubsub: Any) -> None:
    with contextlib.suppress(Exception):
        # aclose() from redis-py 5.0.1 on.
        await getattr(pubsub, "aclose", pubsub.close)()
