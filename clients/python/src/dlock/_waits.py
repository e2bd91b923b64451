"""The waits of one client, and its memory of contended resources.

One subscription serves every wait of a client: each wait has a number, and the server publishes it with the
outcome of the wait. Messages can be lost, so a wait also asks again by its own clock. This module does no
I/O: `_threads.py` and `_tasks.py` listen."""

from __future__ import annotations

import itertools
import secrets
from typing import Any, Callable

from redis.exceptions import NoPermissionError

from . import _protocol
from ._clock import now
from ._protocol import Args, is_misuse

# Time that the server retains a queue position after each request for it, in seconds. A grant to a waiter
# that has died lasts at most as long.
KEEP = 10.0
# Pause between two requests of a wait that receives no message, in seconds.
ASK = KEEP / 3
# After this time without a message, in seconds, the listener sends a PING; after twice as long it reconnects.
SILENCE = 3.0
# Time that the listener stays connected after the last wait, in seconds.
IDLE = 10.0

# Time for which a resource counts as contended after it was found taken, in seconds.
CONTENDED_FOR = 1.0
# Time for which clients queue at a later member before they try the first one again, in seconds.
QUEUE_KEPT_FOR = 2.0
# Number of resources in each memory, which is emptied before it would exceed them.
MAX_RESOURCES = 1000


class Wait:
    """One wait, and the last message about it."""

    def __init__(self, registry: WaitRegistry, number: str, event: Any) -> None:
        self.registry = registry
        self.number = number
        # threading.Event or asyncio.Event
        self.event = event
        self.granted = False
        self.cancelled = False

    def close(self) -> None:
        self.registry.waits.pop(self.number, None)
        self.registry.idle_since = now()


class QueuePosition:
    """A position in the wait queue of a server, and the terms on which the server retains it."""

    def __init__(self, wait: Wait, lease: int) -> None:
        """``lease``: in ms."""
        self.wait = wait
        # Time that the server retains the position, in seconds.
        self.keep = KEEP
        self._lease = lease / 1000
        self._notify = True

    def terms(self) -> Args:
        """Returns ACQUIRE's terms for the position."""
        channel, number = self.wait.registry.channel, self.wait.number
        return _protocol.queued(int(self.keep * 1000), channel, number, notify=self._notify)

    def receives_messages(self) -> bool:
        return self._notify and self.wait.registry.ready

    def ask_differently(self, answer: Any) -> bool:
        """Changes the terms after an error that other terms may avoid. Returns whether it did, so that the
        caller asks again."""
        if isinstance(answer, NoPermissionError) and self._notify:
            # The user has no right to the channel: the wait continues without messages.
            self._notify = False
            return True
        if is_misuse(answer) and self.keep > self._lease:
            # The server limits QUEUE to its `dlock.max-ttl`, and the lease is within that.
            self.keep = self._lease
            return True
        return False


class WaitRegistry:
    """The waits of one client, by their numbers."""

    def __init__(self, event: Callable[[], Any]) -> None:
        self.channel = "dlock:" + secrets.token_urlsafe(15)
        self.waits: dict[str, Wait] = {}
        # Whether the subscription is live.
        self.ready = False
        # Whether the first attempt to subscribe has ended, in success or failure.
        self.tried = False
        # When the listener last received something.
        self.received_at = now()
        # True after a PING without an answer.
        self.ping_sent = False
        self.idle_since = now()
        self._event = event
        self._numbers = itertools.count(1)

    def open(self) -> Wait:
        wait = Wait(self, str(next(self._numbers)), self._event())
        self.waits[wait.number] = wait
        return wait

    def is_idle(self) -> bool:
        return not self.waits and now() - self.idle_since > IDLE

    def on_message(self, message: dict[str, Any] | None) -> None:
        """Handles a message of the subscription, or None if redis-py's `get_message` timed out."""
        if message is None:
            return
        self.received_at = now()
        self.ping_sent = False
        if message["type"] in ("subscribe", "ssubscribe"):
            self.ready = self.tried = True
            # Messages from before the subscription are lost: every wait asks the server.
            self.wake_all()
        elif message["type"] in ("message", "smessage"):
            data = message["data"]
            text = data if isinstance(data, str) else data.decode("ascii", "replace")
            number, _, word = text.partition(" ")
            wait = self.waits.get(number)
            if wait is not None:
                wait.granted = word == "granted"
                wait.cancelled = word == "cancelled"
                wait.event.set()

    def on_silence(self) -> str:
        """Returns the next action of a listener that receives nothing: "ping", "reconnect" or an empty
        string."""
        quiet = now() - self.received_at
        if quiet > 2 * SILENCE and self.ping_sent:
            return "reconnect"
        if quiet > SILENCE and not self.ping_sent:
            self.ping_sent = True
            return "ping"
        return ""

    def disconnected(self) -> None:
        self.ready = False
        self.tried = True
        self.ping_sent = False
        self.received_at = now()
        self.wake_all()

    def wake_all(self) -> None:
        for wait in list(self.waits.values()):
            wait.event.set()


class Contention:
    """The resources that this client found taken a short while ago, and the members at which other clients
    queue for them.

    A client that may wait for a contended resource queues at once: if it asked all masters first, it would
    briefly take votes from the waiter that has just been granted the lock."""

    def __init__(self) -> None:
        self._until: dict[bytes, float] = {}
        # The member at which other clients queue, and the time until which the entry counts.
        self._queues: dict[bytes, tuple[int, float]] = {}
        # Until this time, no attempt looks again for other clients at a later queue.
        self._looked_until: dict[bytes, float] = {}

    def note_taken(self, key: bytes) -> None:
        if len(self._until) >= MAX_RESOURCES:
            self._until.clear()
        self._until[key] = now() + CONTENDED_FOR

    def __contains__(self, key: bytes) -> bool:
        return now() < self._until.get(key, 0.0)

    def meet(self, key: bytes, queue: int) -> None:
        """Records that other clients wait in the queue of the member."""
        if len(self._queues) >= MAX_RESOURCES:
            self._queues.clear()
        self._queues[key] = queue, now() + QUEUE_KEPT_FOR

    def forget_queue(self, key: bytes) -> None:
        self._queues.pop(key, None)

    def queue(self, key: bytes, age: float = QUEUE_KEPT_FOR) -> int | None:
        """Returns the member at which other clients queue. None unless it was recorded within the last `age`
        seconds."""
        queue, until = self._queues.get(key, (None, 0.0))
        return queue if now() + QUEUE_KEPT_FOR < until + age else None

    def begin_look(self, key: bytes) -> bool:
        """Returns whether the caller must look for other clients at a later queue now. Returns True at most
        once in `CONTENDED_FOR` seconds."""
        if now() < self._looked_until.get(key, 0.0):
            return False
        if len(self._looked_until) >= MAX_RESOURCES:
            self._looked_until.clear()
        self._looked_until[key] = now() + CONTENDED_FOR
        return True

    def end_look(self, key: bytes) -> None:
        """Records that the look found no hold of other clients. The next one may follow at once."""
        self._looked_until.pop(key, None)
