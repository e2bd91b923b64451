"""Carries out steps (see `_steps.py`) with threads.

Background work has its own daemon threads, which end when they are idle. The process has one that wakes tasks
(`Background`). Each client has two: one renews and releases (`Link`), the other receives messages
(`Subscriber`). They have connections of their own, with short time limits. So neither a hung server nor a
full connection pool delays them for long. In a cluster, each renewal and each release has a thread of its own
instead, and uses the user's client.

A signal handler may raise in the caller's thread after any call, even inside `threading.Condition`, `Event`
and `Thread.start`, which then leave a lock locked for ever. So the caller's thread shares only these with
other threads: an RLock in a `with`, and a Lock, `queue.SimpleQueue` and `collections.deque`, whose methods
are single calls in C. The clock's thread does the rest: it wakes tasks and starts threads. What a caller does
with the lock held may end after any call, and must leave nothing behind that harms later calls."""

from __future__ import annotations

import _thread
import collections
import contextlib
import functools
import itertools
import math
import os
import queue
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any, Callable

from redis.exceptions import RedisClusterException, RedisError, TimeoutError

from ._clients import (
    Pipe,
    close_idle_connections,
    connections_at_once,
    disconnect,
    execute_at,
    is_cluster,
    node_client,
    own_client,
    sentinels,
    separate_client,
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
    OwedTask,
    Pause,
    SeparateClient,
    Sleep,
    Task,
    TurnLimit,
    Watch,
    WatchLoss,
    WhichPeer,
    asking,
    reporting,
    sending,
)
from ._waits import Wait, WaitRegistry


def run(steps: Steps, client: Any) -> Any:
    """Carries out `steps` over `client`, in this thread."""
    try:
        return _run(steps, client, None)
    except BaseException as why:
        if not _goes_on(steps):
            raise
        failure = why
    # A signal handler has raised where `_run` cannot catch it, between two steps. The steps must still clean
    # up.
    return _run(steps, client, failure)


def _goes_on(steps: Steps) -> bool:
    return getattr(steps, "gi_frame", None) is not None


def _run(steps: Steps, client: Any, failure: BaseException | None) -> Any:
    outcome, turns, limit = None, None, math.inf
    while True:
        try:
            try:
                step = steps.send(outcome) if failure is None else steps.throw(failure)
            except StopIteration as end:
                return end.value
            outcome = failure = None
            if type(step) is tuple:
                turns = _turns_of(client) if turns is None else turns
                outcome = _send(step, client, turns, limit)
            elif type(step) is TurnLimit:
                limit = step.end
            else:
                outcome = _perform(step, client)
        except BaseException as why:
            if not _goes_on(steps):
                raise
            failure = translated(why)


def _send(command: Args, client: Any, turns: Turns, limit: float) -> Any:
    """Sends a command over the pool of the client once it has a turn, and returns the reply."""
    sent, answered = now(), turns.answered
    turn: list[None] = []
    try:
        try:
            # One call takes the turn and notes it: no exception can come between.
            turn.extend(itertools.islice(iter(turns.get_nowait, turns), 1))
        except queue.Empty:
            if command[0] == "DLOCK.RELEASE" and hasattr(client, "connection_pool"):
                # A hold that is not renewed could end before the turn of its release.
                with contextlib.suppress(*NO_ANSWER, RuntimeError):  # or no thread can be started
                    return _send_in_background(command, client)
            turns.wait(turn, sent, limit)
            sent, answered = now(), turns.answered
        try:
            outcome = client.execute_command(*command)
        except Exception as why:
            # The nodes of a cluster fail one by one.
            if hasattr(client, "connection_pool"):
                turns.note_failure(sent, answered, translated(why))
            raise
        turns.answered = sent
        return outcome
    except BaseException as why:
        if not isinstance(translated(why), (RedisError, RedisClusterException)):
            # redis-py may have put back a connection with an unread reply, or a half closed one.
            with contextlib.suppress(Exception):
                close_idle_connections(client)
        raise
    finally:
        if turn:
            turns.put(None)


class Signal:
    """Like a `threading.Event`, for one thread that waits. An exception of a signal handler that ends a
    `wait` leaves it usable.

    It has a lock, and no `queue.SimpleQueue`: before Python 3.13, `get` of an empty queue never returns if
    its time limit passes before it begins to wait."""

    def __init__(self) -> None:
        # Unlocked if the signal is set.
        self._lock = threading.Lock()
        self._lock.acquire()

    def is_set(self) -> bool:
        return not self._lock.locked()

    def set(self) -> None:
        with contextlib.suppress(RuntimeError):  # set already
            self._lock.release()

    def clear(self) -> None:
        self._lock.acquire(blocking=False)

    def wait(self, timeout: float) -> bool:
        if not self._lock.acquire(timeout=max(timeout, 0)):
            return False
        self.set()
        return True


class Turns(TurnsCore, queue.SimpleQueue[None]):
    """A queue with one item for each command that the callers may send at once over a connection pool. A pool
    with a limit raises an error for each further command."""

    def wait(self, turn: list[None], began: float, limit: float) -> None:
        """Waits for a turn, and notes it in ``turn``. ``began``: the present time. ``limit``: see
        `TurnLimit`."""
        left = None if limit == math.inf else min(max(limit - began, 0), threading.TIMEOUT_MAX)
        take = functools.partial(self.get, True, left)
        try:
            # One call, as in `_send`.
            turn.extend(itertools.islice(iter(take, turn), 1))
        except queue.Empty:
            raise NoTurnError("no connection was free for this call within its time limit") from None
        self.raise_failure(began)


# By connection pool.
_turns: weakref.WeakKeyDictionary[Any, Turns] = weakref.WeakKeyDictionary()


def _turns_of(client: Any) -> Turns:
    pool = getattr(client, "connection_pool", client)
    turns = _turns.get(pool)
    if turns is None:
        turns = Turns()
        for _ in range(connections_at_once(pool)):
            turns.put(None)
        turns = _turns.setdefault(pool, turns)
    return turns


def _perform(step: Any, client: Any) -> Any:
    if isinstance(step, Pause):
        return step.wait.event.wait(step.seconds)
    if isinstance(step, Sleep):
        return time.sleep(step.seconds)
    if isinstance(step, AtKey):
        return execute_at(client, step.key, step.command)
    if isinstance(step, WhichPeer):
        return client.peer
    if isinstance(step, Listen):
        return _background.listen(client if step.member == SINGLE else client.members[step.member])
    if isinstance(step, Watch):
        if step.may_refuse and is_cluster(client):
            return False
        _background.watch(step.task, client)
        return True
    if isinstance(step, Ask):
        return _ask(step, client.members.__getitem__)
    if isinstance(step, WatchLoss):
        return watch_loss(step.hold, client)
    if isinstance(step, Reconnect):
        return _reconnect(client)
    if isinstance(step, FindMaster):
        return step.client.connection_pool.get_master_address()
    if isinstance(step, LeaveMaster):
        _background.leave_master(step.client)
        return _reconnect(step.client)
    if isinstance(step, Over):
        return step.client.execute_command(*step.command)
    if isinstance(step, SeparateClient):
        return separate_client(client, step.seconds, step.key)
    if isinstance(step, Close):
        return disconnect(step.client)
    if isinstance(step, Begin):
        if step.member is None:
            # The threads of the members send the questions of these steps, while the steps wait. So the steps
            # run in a thread that belongs to no member.
            _background.start_soon(functools.partial(_start, run, "dlock-steps", step.steps, step.quorum))
            return None
        return _background.submit(step.steps, step.quorum.members[step.member], is_member=True)
    assert isinstance(step, Owe)
    return _owe(step, client)


def watch_loss(hold: Hold, client: Any) -> None:
    """Watches a hold on the server, unless it is watched already. Not over a quorum."""
    if hold.loss_watch is not None or hold.over:
        return

    def watch_at(node: Any, on_away: Callable[[], object] | None = None) -> LossWatch:
        watch = LossWatch(hold, _background.registry(node), on_away)
        _background.watch(watch, node)
        return watch

    if hasattr(client, "connection_pool"):
        hold.loss_watch = watch_at(client)
    elif is_cluster(client):
        find_node = functools.partial(node_client, client, hold.key)
        hold.loss_watch = ClusterLossWatch(hold, client, find_node, watch_at)
        _background.watch(hold.loss_watch, client)


def _owe(step: Owe, client: Any) -> None:
    # The background repeats each owed command (a RELEASE or CANCEL) until the server has confirmed it. This
    # thread waits for the first answers.
    answer_arrived = Signal()

    def each_owed() -> Iterator[tuple[OwedTask, Any, bool]]:
        for member, owed in step.owed.items():
            yield owed, client if member == SINGLE else client.members[member], member != SINGLE

    def begin() -> list[tuple[OwedTask, Link]]:
        links = []
        for owed, to, is_member in each_owed():
            owed.on_answer = answer_arrived.set
            links.append((owed, _background.watch(owed, to, is_member=is_member)))
        return links

    try:
        links = begin()
    except BaseException as why:
        if "interpreter shutdown" in str(why):
            # Python 3.12.0 to 3.12.2 start no thread in a handler of atexit. This thread tries once.
            for owed, to, is_member in each_owed():
                work: Any = owed.wake()
                job, link = Job(work, owed), Link(to, is_member, _background)
                if is_cluster(to):
                    _background._carry_out_alone(job, link)
                else:
                    link.carry_out(job)
                link.close()
            return
        # A signal handler has raised, and would leave the commands at later members unsent.
        begin()
        raise
    end = now() + PATIENCE
    while not step.enough():
        if answer_arrived.wait(end - now()):
            answer_arrived.clear()
            continue
        # The limit counts from when a command goes out, and any answer is a sign of life.
        alive_at = max((link.alive_at() for owed, link in links if owed.is_awaited()), default=-math.inf)
        if now() >= alive_at + PATIENCE:
            break
        end = alive_at + PATIENCE


def _reconnect(client: Any) -> None:
    if isinstance(client, Pipe):
        client.disconnect()
    else:
        with contextlib.suppress(Exception):
            close_idle_connections(client)
    _background.reconnect_subscriber(client)


def _send_in_background(command: Args, client: Any) -> Any:
    """Sends a command over the connection of the background, and returns the reply."""
    step = Ask({SINGLE: sending(command)}, lambda answers: False, lambda *_: None)
    answer = _ask(step, lambda _: client, is_member=False).get(SINGLE, TimeoutError("no answer in time"))
    if isinstance(answer, Exception):
        raise answer
    return answer


def _ask(step: Ask, client_of: Callable[[int], Any], *, is_member: bool = True) -> Answers:
    answers: Answers = {}
    answer_arrived = Signal()

    links = {
        member: _background.submit(steps, client_of(member), is_member=is_member)
        for member, steps in asking(step, answers, answer_arrived.set)
    }
    end = now() + ASK_LIMIT
    while len(answers) < len(step.questions) and not step.enough(dict(answers)):
        if answer_arrived.wait(end - now()):
            answer_arrived.clear()
            continue
        # The limit counts from when a command goes out, and any answer is a sign of life.
        alive_at = [link.alive_at() for member, link in links.items() if member not in answers]
        end = max(alive_at, default=math.inf) + ASK_LIMIT
        if now() >= end:
            break
    return dict(answers)


def _advance(job: Job, client: Any) -> Any:
    """Continues the steps of a job until their next command, or until they ask members of a quorum. Returns
    that step. None once the steps have ended."""
    while True:
        step = job.resume()
        if step is None or type(step) is tuple or isinstance(step, Ask):
            return step
        try:
            job.outcome = _perform(step, client)
        except Exception as why:
            job.outcome = translated(why)


class Link(LinkCore):
    """The connection of the background to one server, and the thread that uses it. The commands of all jobs
    that are ready are sent together, in one pipeline. So a RELEASE follows its ACQUIRE, and a command waits
    for one round trip at most before it is sent."""

    def __init__(self, client: Any, is_member: bool, background: Background) -> None:
        super().__init__(client, is_member)
        self.background = background
        # Jobs. For a quorum also functions to call.
        self.jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.thread: threading.Thread | None = None
        self._pipe: Pipe | None = None

    def alive_at(self) -> float:
        """Returns the time from which a limit for the answers of the server counts."""
        if self._pipe is not None:
            return self._pipe.alive_at()
        return -math.inf if self.thread is None else now()

    def carry_out(self, job: Any) -> None:
        """Carries out jobs until none is left."""
        if self._pipe is None:
            self._pipe = Pipe(self.client, self.is_member)
        running = [job]
        while running:
            with contextlib.suppress(queue.Empty):
                while len(running) < MOST_AT_ONCE:
                    running.append(self.jobs.get_nowait())
            waiting, commands = [], []
            for each in running:
                command = self._advance(each)
                if command is not None:
                    waiting.append(each)
                    commands.append(command)
            if commands:
                for each, outcome in zip(waiting, self._pipe.execute(commands)):
                    each.outcome = outcome
            running = waiting

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()

    def _advance(self, job: Job) -> Any:
        command = None
        try:
            command = _advance(job, self._pipe)
        except Exception:
            logger.exception("a renewal or a release failed")
        finally:
            if command is None:
                self._end(job)
        return command

    def _end(self, job: Job) -> None:
        if job.task is not None:
            job.task.steps_ended()
            self.background.reschedule(job.task, self)


class Asking:
    """An `Ask` of a job in the background, which awaits the answers of members. It is a task that is due at
    its time limit."""

    def __init__(self, job: Job, step: Ask, link: QuorumLink) -> None:
        self.job = job
        self.step = step
        self.answers: Answers = {}
        self.is_decided = False
        self.changed: Callable[[], object] | None = None
        self._link = link
        self._end = now() + ASK_LIMIT

    def begin(self) -> None:
        for member, question in self.step.questions.items():
            steps = reporting(question, functools.partial(self._report, member))
            self._link.background.submit(steps, self._link.client.members[member], is_member=True)
        self._link.background.watch(self, self._link.client)

    def _report(self, member: int, answer: Any) -> Steps:
        next_steps = self.step.on_answer(member, answer, (yield WhichPeer()))
        self._link.jobs.put(functools.partial(self.receive, member, answer))
        if next_steps is not None:
            yield from next_steps

    def receive(self, member: int, answer: Any) -> None:
        """Receives an answer, in the thread of the quorum."""
        self.answers[member] = answer
        if len(self.answers) == len(self.step.questions) or self.step.enough(self.answers):
            self.decide()

    def decide(self) -> None:
        if not self.is_decided:
            self.is_decided = True
            if self.changed is not None:
                self.changed()
            self.job.outcome = dict(self.answers)
            self._link.advance(self.job)

    # The methods of a `Task`.

    def finished(self) -> bool:
        return self.is_decided

    def wake_at(self) -> float:
        return self._end

    def wake(self) -> None:
        self._end = math.inf
        self._link.jobs.put(self.decide)

    def steps_ended(self) -> None:
        pass


class QuorumLink(Link):
    """The renewals of the holds of a quorum. Their steps ask the members, whose links send the requests. The
    thread of this object decides, and waits for no answer: so any number of renewals can be under way.

    Another one is for the lookouts behind Sentinel, whose steps contain no commands either."""

    def carry_out(self, job: Any) -> None:
        if isinstance(job, Job):
            self.advance(job)
        else:
            job()

    def advance(self, job: Job) -> None:
        """Continues the steps until they ask members, or end."""
        step = None
        try:
            step = _advance(job, self.client)
            if step is not None:
                Asking(job, step, self).begin()
        except Exception:
            logger.exception("a renewal failed")
            step = None
        finally:
            if step is None:
                self._end(job)


class Background:
    """The background work of the process: one thread, the clock, wakes the tasks when they are due, and
    starts the other threads. It does no I/O, so that nothing delays it."""

    def __init__(self) -> None:
        # Guards all of the following. Reentrant, as a signal handler may use locks while its thread has it.
        self._lock = threading.RLock()
        self._schedule = Schedule()
        # By the id of the connection pool, as clients with the same pool share a link, and `is_member`.
        self._links: dict[tuple[int, bool], Link] = {}
        self._subscribers: dict[int, Subscriber] = {}
        # By the id of the connection pool: behind Sentinel, while there is a link or a subscriber.
        self._lookouts: dict[int, Lookout] = {}
        # Whether the clock was started, and whether it runs.
        self._clock_started = self._clock_runs = False
        # Set by each call that may have to end the clock's sleep.
        self._bell = Signal()
        # Functions that start a thread. The clock calls them, and repeats those that raise a RuntimeError.
        self._starts: collections.deque[Callable[[], object]] = collections.deque()
        # Functions of the user to call, in one thread.
        self._calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._caller: threading.Thread | None = None

    def replace_lock(self) -> None:
        self._lock = threading.RLock()

    def watch(self, task: Task, client: Any, *, is_member: bool = False) -> Link:
        """Wakes the task whenever it is due, until it is finished."""
        with self._lock:
            self._start_clock()
            link = self._link(client, is_member)
            try:
                link.tasks.add(id(task))
                task.changed = functools.partial(self.reschedule, task, link)
                self._set(task, link)
            except BaseException:
                link.tasks.discard(id(task))
                raise
        return link

    def submit(self, steps: Steps, client: Any, *, is_member: bool) -> Link:
        """Carries out steps in the background."""
        job = Job(steps, None)
        with self._lock:
            link = self._link(client, is_member)
            if is_cluster(client):
                self.start_soon(functools.partial(_start, self._carry_out_alone, "dlock-renewal", job, link))
                return link
            if link.thread is None:
                self.start_soon(functools.partial(self._start_link, link))
            link.jobs.put(job)
        return link

    def start_soon(self, start: Callable[[], object]) -> None:
        """Lets the clock call a function that starts a thread."""
        with self._lock:
            self._start_clock()
            self._starts.append(start)
            self._bell.set()

    def reschedule(self, task: Task, link: Link) -> None:
        """Called when the task may be due earlier than before, or finished."""
        with self._lock:
            if task.finished():
                # In this order: a task that is left in the schedule is removed when it is due.
                link.tasks.discard(id(task))
                self._schedule.remove(task)
                task.changed = None
                if link.thread is None and not link.tasks and link.jobs.empty():
                    self._links.pop(link.key, None)
            elif id(task) in link.tasks:
                self._set(task, link)

    def _set(self, task: Task, link: Link) -> None:
        at = task.wake_at()
        # First the bell: the clock looks at the schedule once this thread has unlocked it.
        if at < self._schedule.next_at():
            self._bell.set()
        self._schedule.set(task, at, link)

    def listen(self, client: Any) -> Wait:
        return self.registry(client).open()

    def registry(self, client: Any) -> WaitRegistry:
        """Returns the registry of the client's subscription, and starts one if there is none."""
        with self._lock:
            subscriber = self._subscribers.get(pool_id(client))
            if subscriber is None:
                subscriber = self._subscribers[pool_id(client)] = Subscriber(client)
            self._look_out(client)
            # The subscriber does not end before the caller has opened its wait or watch.
            subscriber.registry.idle_since = now()
            if not subscriber.is_started:
                try:
                    self.start_soon(functools.partial(self._start_listening, subscriber))
                except RuntimeError as why:
                    self._not_listening(subscriber, why)
            return subscriber.registry

    def _start_listening(self, subscriber: Subscriber) -> None:
        if subscriber.is_started:
            return
        try:
            _start(self._listen, "dlock-messages", subscriber)
            subscriber.is_started = True
        except RuntimeError as why:
            self._not_listening(subscriber, why)

    def _not_listening(self, subscriber: Subscriber, why: RuntimeError) -> None:
        # No thread can be started, for example at the exit of the interpreter. The waits poll.
        logger.debug("not listening: %s", why)
        subscriber.registry.on_disconnected()
        self._remove(subscriber)

    def _remove(self, subscriber: Subscriber) -> None:
        key = pool_id(subscriber.client)
        if self._subscribers.get(key) is subscriber:
            del self._subscribers[key]

    def reconnect_subscriber(self, client: Any) -> None:
        with self._lock:
            subscriber = self._subscribers.get(pool_id(client))
            if subscriber is not None:
                subscriber.registry.must_reconnect = True

    def _link(self, client: Any, is_member: bool) -> Link:
        key = link_key(client, is_member)
        link = self._links.get(key)
        if link is None:
            has_no_commands = hasattr(client, "members") or hasattr(client, "discover_master")
            kind = QuorumLink if has_no_commands else Link
            link = self._links[key] = kind(client, is_member, self)
        if not is_member:
            self._look_out(client)
        return link

    def _look_out(self, client: Any) -> None:
        """Begins to look out for another master behind Sentinel, unless that has begun."""
        manager = sentinels(client)
        if manager is not None and pool_id(client) not in self._lookouts:
            lookout = Lookout(client, functools.partial(self._is_used, client))
            # In this order: a signal handler may raise in between.
            self.watch(lookout, manager)
            self._lookouts[pool_id(client)] = lookout

    def _is_used(self, client: Any) -> bool:
        """Returns whether there is a link or a subscriber. If not, the lookout ends."""
        with self._lock:
            is_used = link_key(client, False) in self._links or pool_id(client) in self._subscribers
            if not is_used:
                self._lookouts.pop(pool_id(client), None)
            return is_used

    def leave_master(self, client: Any) -> None:
        """Called when another server has become the master of the client."""
        with self._lock:
            link = self._links.get(link_key(client, False))
            tasks = [] if link is None else self._schedule.tasks_at(link)
            if link is not None and link._pipe is not None:
                link._pipe.must_reconnect = True
        for task in tasks:
            if isinstance(task, Hold):
                task.master_changed()

    def _start_link(self, link: Link) -> None:
        if link.thread is None:
            link.thread = _start(self._work, "dlock-renewal", link)

    def _submit(self, job: Job, link: Link) -> None:
        """Carries out the steps of a task, which the clock has woken."""
        if is_cluster(link.client):
            # The steps get a thread of their own: a node that hangs must not delay requests to other nodes.
            try:
                _start(self._carry_out_alone, "dlock-renewal", job, link)
            except BaseException:
                if job.task is not None:
                    job.task.steps_ended()
                raise
            return
        link.jobs.put(job)
        if link.thread is None:
            self._starts.append(functools.partial(self._start_link, link))

    def _carry_out_alone(self, job: Job, link: Link) -> None:
        try:
            run(job.steps, link.client)
        except Exception:
            logger.exception("a renewal or a release failed")
        finally:
            if job.task is not None:
                job.task.steps_ended()
                self.reschedule(job.task, link)

    def _work(self, link: Link) -> None:
        """Carries out the jobs of a link. Ends when it has had none for a while."""
        while True:
            try:
                job = link.jobs.get(timeout=LINK_IDLE)
            except queue.Empty:
                with self._lock:
                    if not link.jobs.empty() or link.tasks:
                        continue
                    # No other thread can find the link any more: the next job gets a new one.
                    self._links.pop(link.key, None)
                    break
            try:
                link.carry_out(job)
            except Exception:
                logger.exception("the background failed")
        link.close()

    def _start_clock(self) -> None:
        if not self._clock_started:
            # A new thread calls `Thread.start`, as no signal handler runs there. If an exception comes
            # between these two lines, the second thread ends at once.
            _thread.start_new_thread(self._begin_clock, ())
            self._clock_started = True

    def _begin_clock(self) -> None:
        with self._lock:
            if self._clock_runs:
                return
            self._clock_started = self._clock_runs = True
        try:
            _start(self._run, "dlock-clock")
        except RuntimeError:
            # No further thread can be started.
            self._run()

    def _run(self) -> None:
        while True:
            with self._lock:
                are_started = self._start_threads()
                found = self._schedule.pop(now())
                longest = TICK if self._schedule else LINK_IDLE
                pause = min(self._schedule.next_at() - now(), longest if are_started else TICK / 10)
            if found is None:
                if not self._sleep(max(pause, 0)):
                    return
                continue
            task, link = found
            if not task.finished() and task.wake_at() <= now():
                self._wake(task, link)
            else:
                self.reschedule(task, link)

    def _sleep(self, seconds: float) -> bool:
        """Sleeps until the bell rings. Returns False if the clock ends, as it has nothing to do."""
        if self._bell.wait(seconds):
            self._bell.clear()
            return True
        with self._lock:
            if self._schedule or self._starts or self._bell.is_set():
                return True
            self._clock_started = self._clock_runs = False
        return False

    def _start_threads(self) -> bool:
        """Starts the threads that callers need. Returns False if one could not be started."""
        while self._starts:
            try:
                self._starts[0]()
            except RuntimeError:
                return False
            self._starts.popleft()
        return True

    def _wake(self, task: Task, link: Link) -> None:
        # Catches any exception: the thread must wake the other tasks.
        try:
            work = task.wake()
            if callable(work):
                self._call(work)
            elif work is not None:
                with self._lock:
                    self._submit(Job(work, task), link)
        except Exception:
            logger.exception("a background task failed")
        self.reschedule(task, link)

    def _call(self, function: Callable[[], object]) -> None:
        """Calls a function of the user, which may block, in the one thread for all of them."""
        self._calls.put(function)
        with self._lock:
            if self._caller is None:
                self._caller = _start(self._call_all, "dlock-lost")

    def _call_all(self) -> None:
        while True:
            try:
                function = self._calls.get(timeout=LINK_IDLE)
            except queue.Empty:
                with self._lock:
                    if self._calls.empty():
                        self._caller = None
                        return
                continue
            # Catches any exception, even `sys.exit`.
            try:
                function()
            except BaseException:
                logger.exception("on_lost failed")

    def _listen(self, subscriber: Subscriber) -> None:
        while not self._close_if_idle(subscriber):
            subscriber.receive(lambda: self._close_if_idle(subscriber))

    def _close_if_idle(self, subscriber: Subscriber) -> bool:
        """Removes an idle subscriber: the next wait gets another one. Returns whether it is removed."""
        with self._lock:
            if subscriber.registry.is_idle():
                self._remove(subscriber)
            return self._subscribers.get(pool_id(subscriber.client)) is not subscriber


class Subscriber:
    """The subscription of one client, with a thread and a connection of its own."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.registry = WaitRegistry(Signal)
        # Whether its thread was started.
        self.is_started = False

    def receive(self, is_closed: Callable[[], bool]) -> None:
        """Receives messages until the connection breaks, or the subscriber is closed."""
        registry, pubsub = self.registry, None
        try:
            pubsub = own_client(self.client, registry.on_client_id).pubsub()
            for channel in registry.channels():
                pubsub.subscribe(channel)
            while not is_closed():
                try:
                    registry.on_message(pubsub.get_message(timeout=LIMIT))
                except Exception as why:
                    if not registry.on_error(translated(why)):
                        raise
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


def _start(target: Any, name: str, *args: Any) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, args=args, daemon=True)
    thread.start()
    return thread


def _forked() -> None:
    """Gives a forked child a new background. The threads and their work stay in the parent, and the child
    uses none of the parent's connections."""
    global _background
    # Another thread of the parent may have locked it at the fork, and holds of the parent still refer to it.
    _background.replace_lock()
    _background = Background()
    _turns.clear()


_background = Background()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
