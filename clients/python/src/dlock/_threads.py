"""Carries out steps (see `_steps.py`) with threads.

Background work has its own daemon threads, which end when they are idle. The process has one that wakes tasks
(`Background`). Each client has two: one renews and releases (`Link`), the other receives messages
(`Subscriber`). They have connections of their own, with short time limits. So neither a hung server nor a
full connection pool delays them for long. In a cluster, each renewal and each release has a thread of its own
instead, and uses the user's client."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import queue
import threading
import time
import weakref
from typing import Any, Callable

from ._clients import (
    Pipe,
    close_idle_connections,
    connections_at_once,
    disconnect,
    execute_at,
    is_cluster,
    node_client,
    own_client,
    separate_client,
    translated,
)
from ._clock import now
from ._hold import ClusterLossWatch, Hold, LossWatch, logger
from ._protocol import Reconnect, Steps
from ._schedule import Job, LinkCore, Schedule, link_key, pool_id
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
    Listen,
    Over,
    Owe,
    Pause,
    SeparateClient,
    Sleep,
    Task,
    Watch,
    WatchLoss,
    WhichPeer,
    reporting,
)
from ._waits import Wait, WaitRegistry


def run(steps: Steps, client: Any) -> Any:
    """Carries out `steps` over `client`, in this thread."""
    outcome, failure, turns = None, None, None
    while True:
        try:
            step = steps.send(outcome) if failure is None else steps.throw(failure)
            outcome = failure = None
            if type(step) is not tuple:
                outcome = _perform(step, client)
                continue
            turns = _turns_of(client) if turns is None else turns
            turn = turns.get()
            try:
                outcome = client.execute_command(*step)
            finally:
                turns.put(turn)
        except BaseException as why:
            # A signal handler can raise anywhere in this loop: the steps must still clean up.
            if getattr(steps, "gi_frame", None) is None:
                if isinstance(why, StopIteration):
                    return why.value
                raise
            failure = translated(why)


# By connection pool: a queue with one item for each command that the callers may send at once. A pool with a
# limit raises an error for each further command.
_turns: weakref.WeakKeyDictionary[Any, queue.SimpleQueue[None]] = weakref.WeakKeyDictionary()


def _turns_of(client: Any) -> queue.SimpleQueue[None]:
    pool = getattr(client, "connection_pool", client)
    turns = _turns.get(pool)
    if turns is None:
        turns = queue.SimpleQueue()
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
        return _ask(step, client)
    if isinstance(step, WatchLoss):
        return watch_loss(step.hold, client)
    if isinstance(step, Reconnect):
        return _reconnect(client)
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
            _start(run, "dlock-steps", step.steps, step.quorum)
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
    answer_arrived = threading.Event()
    links = []
    for member, owed in step.owed.items():
        owed.on_answer = answer_arrived.set
        to = client if member == SINGLE else client.members[member]
        links.append((owed, _background.watch(owed, to, is_member=member != SINGLE)))
    end = now() + PATIENCE
    while not step.enough():
        if answer_arrived.wait(max(end - now(), 0)):
            answer_arrived.clear()
            continue
        # The limit counts from when a command goes out, and any answer is a sign of life.
        alive_at = max((link.alive_at() for owed, link in links if not owed.is_tried), default=-math.inf)
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


def _ask(step: Ask, client: Any) -> Answers:
    inbox: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    links = {}
    for member, question in step.questions.items():
        report = functools.partial(_report_answer, step, inbox, member)
        links[member] = _background.submit(
            reporting(question, report), client.members[member], is_member=True
        )
    answers: Answers = {}
    end = now() + ASK_LIMIT
    while len(answers) < len(step.questions) and not step.enough(answers):
        try:
            member, answer = inbox.get(timeout=max(end - now(), 0))
        except queue.Empty:
            # The limit counts from when a command goes out, and any answer is a sign of life.
            end = max(link.alive_at() for member, link in links.items() if member not in answers) + ASK_LIMIT
            if now() >= end:
                break
        else:
            answers[member] = answer
    return answers


def _report_answer(step: Ask, inbox: queue.SimpleQueue[tuple[int, Any]], member: int, answer: Any) -> Steps:
    next_steps = step.on_answer(member, answer, (yield WhichPeer()))
    inbox.put((member, answer))
    if next_steps is not None:
        yield from next_steps


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
    thread of this object decides, and waits for no answer: so any number of renewals can be under way."""

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
    """The background work of the process: one thread wakes the tasks when they are due, and does no I/O, so
    that nothing delays it."""

    def __init__(self) -> None:
        # Guards all of the following.
        self._changed = threading.Condition()
        self._schedule = Schedule()
        # By the id of the connection pool, as clients with the same pool share a link, and `is_member`.
        self._links: dict[tuple[int, bool], Link] = {}
        # The links whose thread could not be started. The thread below tries again soon.
        self._unstarted: set[Link] = set()
        self._subscribers: dict[int, Subscriber] = {}
        self._thread: threading.Thread | None = None
        # Functions of the user to call, in a thread of their own.
        self._calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._caller: threading.Thread | None = None

    def replace_lock(self) -> None:
        self._changed = threading.Condition()

    def watch(self, task: Task, client: Any, *, is_member: bool = False) -> Link:
        """Wakes the task whenever it is due, until it is finished."""
        with self._changed:
            if self._thread is None:
                self._thread = _start(self._run, "dlock-clock")
            link = self._link(client, is_member)
            link.tasks.add(id(task))
            task.changed = functools.partial(self.reschedule, task, link)
        if task.wake_at() <= now():
            self._wake(task, link)
        else:
            self.reschedule(task, link)
        return link

    def submit(self, steps: Steps, client: Any, *, is_member: bool, task: Task | None = None) -> Link:
        """Carries out steps in the background."""
        with self._changed:
            link = self._link(client, is_member)
            self._submit(Job(steps, task), link)
        return link

    def reschedule(self, task: Task, link: Link) -> None:
        """Called when the task may be due earlier than before, or finished."""
        with self._changed:
            if task.finished():
                self._schedule.remove(task)
                link.tasks.discard(id(task))
                task.changed = None
                if link.thread is None and not link.tasks and link.jobs.empty():
                    self._links.pop(link.key, None)
            elif id(task) in link.tasks and self._schedule.set(task, task.wake_at(), link):
                self._changed.notify()

    def listen(self, client: Any) -> Wait:
        return self.registry(client).open()

    def registry(self, client: Any) -> WaitRegistry:
        """Returns the registry of the client's subscription, and starts one if there is none."""
        with self._changed:
            subscriber = self._subscribers.get(pool_id(client))
            if subscriber is None:
                subscriber = Subscriber(client)
                try:
                    _start(self._listen, "dlock-messages", subscriber)
                except RuntimeError as why:
                    # No thread can be started, for example at the exit of the interpreter. This wait polls.
                    logger.debug("not listening: %s", why)
                    subscriber.registry.on_disconnected()
                    return subscriber.registry
                self._subscribers[pool_id(client)] = subscriber
            # The subscriber does not end before the caller has opened its wait or watch.
            subscriber.registry.idle_since = now()
            return subscriber.registry

    def reconnect_subscriber(self, client: Any) -> None:
        with self._changed:
            subscriber = self._subscribers.get(pool_id(client))
            if subscriber is not None:
                subscriber.registry.must_reconnect = True

    def _link(self, client: Any, is_member: bool) -> Link:
        key = link_key(client, is_member)
        link = self._links.get(key)
        if link is None:
            kind = QuorumLink if hasattr(client, "members") else Link
            link = self._links[key] = kind(client, is_member, self)
        return link

    def _submit(self, job: Job, link: Link) -> None:
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
            try:
                link.thread = _start(self._work, "dlock-renewal", link)
            except RuntimeError:
                if job.task is None:
                    raise
                self._unstarted.add(link)

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
                with self._changed:
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

    def _run(self) -> None:
        while True:
            with self._changed:
                found = self._schedule.pop(now())
                if found is None:
                    self._start_links()
                    if not self._schedule and not self._unstarted:
                        self._changed.wait(LINK_IDLE)
                        if not self._schedule and not self._unstarted:
                            self._thread = None
                            return
                        continue
                    longest = TICK / 10 if self._unstarted else TICK
                    self._changed.wait(min(max(self._schedule.next_at() - now(), 0), longest))
                    continue
            task, link = found
            if not task.finished() and task.wake_at() <= now():
                self._wake(task, link)
            else:
                self.reschedule(task, link)

    def _start_links(self) -> None:
        for link in list(self._unstarted):
            with contextlib.suppress(RuntimeError):
                if link.thread is None:
                    link.thread = _start(self._work, "dlock-renewal", link)
                self._unstarted.discard(link)

    def _wake(self, task: Task, link: Link) -> None:
        # Catches any exception: the thread must wake the other tasks.
        try:
            work = task.wake()
            if callable(work):
                self._call(work)
            elif work is not None:
                with self._changed:
                    self._submit(Job(work, task), link)
        except Exception:
            logger.exception("a background task failed")
        self.reschedule(task, link)

    def _call(self, function: Callable[[], object]) -> None:
        """Calls a function of the user, which may block, in a thread of its own."""
        self._calls.put(function)
        with self._changed:
            if self._caller is None:
                self._caller = _start(self._call_all, "dlock-lost")

    def _call_all(self) -> None:
        while True:
            try:
                function = self._calls.get(timeout=LINK_IDLE)
            except queue.Empty:
                with self._changed:
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
        with self._changed:
            key = pool_id(subscriber.client)
            if subscriber.registry.is_idle() and self._subscribers.get(key) is subscriber:
                del self._subscribers[key]
            return self._subscribers.get(key) is not subscriber


class Subscriber:
    """The subscription of one client, with a thread and a connection of its own."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.registry = WaitRegistry(threading.Event)

    def receive(self, is_closed: Callable[[], bool]) -> None:
        """Receives messages until the connection breaks, or the subscriber is closed."""
        registry, pubsub = self.registry, None
        try:
            pubsub = own_client(self.client, registry.on_client_id).pubsub()
            pubsub.subscribe(registry.channel)
            while not is_closed():
                channels = registry.channels_to_add()
                if channels:
                    pubsub.subscribe(*channels)
                registry.on_message(pubsub.get_message(timeout=LIMIT))
                action = registry.next_action()
                if action == "ping":
                    pubsub.ping()
                elif action == "reconnect":
                    break
        except Exception as why:
            logger.debug("not listening: %s", why)
            registry.on_error(translated(why))
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
