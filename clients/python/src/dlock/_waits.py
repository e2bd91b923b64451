"""The waits of one client, and its record of contended locks.

One subscription serves every wait of a client. The server publishes the outcome of each wait: the message of
a grant is the grant. Messages can be lost, so a wait also repeats its request after a pause. This module does
no I/O: `_threads.py` and `_tasks.py` receive the messages."""

from __future__ import annotations

import itertools
import math
import random
import secrets
from typing import Any, Callable, NamedTuple, Protocol

from redis.exceptions import NoPermissionError

from ._clock import now, validity
from ._protocol import CountedName, Options, is_misuse, read_message

# Time that the server retains a queue position after each request for it, in seconds. A grant to the
# position also ends within that time, unless the waiter sends its request again.
KEEP = 10.0
# Pause between two requests of a wait while no message arrives, in seconds.
ASK = KEEP / 3
# Least length of this pause if the lease is short, in seconds. After a message that finds nothing left of the
# validity, the wait asks again.
SHORTEST_ASK = 0.5
# After this time without a message, in seconds, the subscriber sends a PING; after twice as long it
# reconnects.
SILENCE = 3.0
# Least time from the end of a subscription until the subscriber ends the next one because the server is no
# master, in seconds. Each new subscription lets all waits ask again. While the address still leads to a
# replica, all of them are refused.
LEAST_SUBSCRIBED = 0.5
# Time that the subscriber stays connected after the last wait, in seconds.
IDLE = 10.0

# Time for which a lock counts as contended after it was found taken, in seconds.
CONTENDED_FOR = 1.0
# In a quorum: least time between two looks for other clients in the queues of later members (see
# `Contention`), in seconds.
LOOK_INTERVAL = 1.0
# In a quorum: how long a start queue (see `Contention`) is used after the client has last noticed other
# clients there, in seconds.
START_QUEUE_KEPT_FOR = 2.0
# Greatest number of entries in each dict of `Contention`. A full dict is cleared.
MAX_ENTRIES = 1000


class Grant(NamedTuple):
    """A grant that a message has reported."""

    # The number of the call whose message it was.
    call: int
    fence: int
    # End of the time for which the client may rely on the grant, unless it claims the hold before.
    valid_until: float


class Call(NamedTuple):
    """A call of a wait: see `Wait`."""

    number: int
    # Its command, with the time at which it is sent.
    name: CountedName
    # That of a grant to this call, in seconds.
    validity: float
    secret: bytes

    def valid_until(self) -> float:
        return self.name.sent_at + self.validity


class Wait:
    """One wait. Each of its calls (ACQUIREs with QUEUE) has a message of its own: an id, `<random>.<number>`,
    which the server publishes with the outcome, and a secret, which it publishes with a grant only. Both are
    drawn for each call: a published message shows them to every client that may listen, and the wait can go
    on."""

    def __init__(self, registry: WaitRegistry, event: Any) -> None:
        self.registry = registry
        # A threading.Event or `_tasks.Signal`, which is set when the wait must ask the server.
        self.event = event
        # The last grant that a message has reported.
        self.grant: Grant | None = None
        self.cancelled = False
        # Whether the server can no longer grant the lock to this position. It may have become a replica.
        self.refused = False
        # Two threads may send calls at the same time, and must not draw the same number.
        self._numbers = itertools.count(1)
        # The calls that can still get a message, by id.
        self._calls: dict[bytes, Call] = {}
        # The number of the last call that was answered with null.
        self._last_null = 0
        # Whether a grant would come by message: a call was answered with null, and since then no message has
        # come, and the subscription has not changed.
        self._expects_message = False

    def next_message(self, name: CountedName, validity: float) -> bytes:
        """Returns the message of the next call. ``name``: its command, with the time at which it is sent.
        ``validity``: that of a grant to this call, in seconds from that time."""
        number = next(self._numbers)
        # A call beyond its validity cannot grant any more. One that is not sent may still wait for its turn.
        time = now()
        self._forget(
            lambda call: (
                time >= call.valid_until() and (call.name.times_sent > 0 or call.number < self._last_null)
            )
        )
        call, secret = b"%s.%d" % (random_word(), number), random_word()
        self._calls[call] = Call(number, name, validity, secret)
        self.registry.waits[call] = self
        return call + b" " + secret

    def note_null(self, message: bytes) -> None:
        """The call with this message was answered with null: a grant to an earlier call has ended, unless the
        server has read another copy of that call since. So the message of an earlier call is no grant, but
        wakes the wait."""
        self._last_null = max(self._last_null, number_of(message))
        self._expects_message = self.registry.is_subscribed

    def note_grant(self) -> None:
        """A call was answered with a grant."""
        self.registry.misses_message |= self._expects_message

    def wake(self) -> None:
        """Lets the wait ask the server, as a message may be lost."""
        self._expects_message = False
        self.event.set()

    def on_message(self, call: bytes, outcome: str, fence: int, secret: bytes) -> None:
        """Handles a message about this wait. Only the first one of a call counts."""
        self.registry.waits.pop(call, None)
        self._expects_message = False
        found = self._calls.pop(call, None)
        if found is None:
            return
        # A grant without the secret is forged. One to an earlier call does not replace a later one.
        is_real = outcome == "granted" and secret == found.secret
        if is_real and (self.grant is None or self.grant.call < found.number):
            self.grant = Grant(found.number, fence, found.valid_until())
        self.cancelled |= outcome == "cancelled"
        self.refused |= outcome == "refused"
        self.event.set()

    def valid_grant(self) -> Grant | None:
        """Returns the grant that a message has reported. None if there is none, its hold may have ended, or
        nothing is left of its validity."""
        grant = self.grant
        is_valid = grant is not None and grant.call >= self._last_null and now() < grant.valid_until
        return grant if is_valid else None

    def close(self) -> None:
        self._forget(lambda _: True)
        self.registry.open_waits.discard(self)
        self.registry.idle_since = now()

    def _forget(self, condition: Callable[[Call], bool]) -> None:
        for word, call in list(self._calls.items()):
            if condition(call):
                self._calls.pop(word, None)
                self.registry.waits.pop(word, None)


def number_of(message: bytes) -> int:
    """Returns the number of the call with this message."""
    return int(message.partition(b" ")[0].rpartition(b".")[2] or 0)


def random_word() -> bytes:
    """Returns a secret of 11 random characters."""
    return secrets.token_urlsafe(8).encode()


class QueuePosition:
    """A position in the wait queue of a server, with the options of the ACQUIREs that retain it."""

    def __init__(self, wait: Wait, lease: int) -> None:
        """``lease``: in ms."""
        self.wait = wait
        # Time that the server retains the position, in seconds.
        self.keep = KEEP
        self._lease = lease / 1000
        self._notify = True

    def added_to(self, options: Options, name: CountedName) -> Options:
        """Returns the options of the next ACQUIRE, with those for the position. ``name``: see
        `Wait.next_message`."""
        notify = None
        if self._notify:
            message = self.wait.next_message(name, validity(min(self._lease, self.keep)))
            notify = self.wait.registry.channel, message
        return options.waiting(int(self.keep * 1000), notify)

    def unread_notify(self) -> tuple[str, bytes] | None:
        """Returns the channel and message of a call whose message is not read: the wait has ended."""
        return (self.wait.registry.channel, random_word()) if self._notify else None

    def pause(self) -> float:
        """Returns the longest pause before the next call, in seconds: a part of the validity must be left
        whenever a message arrives."""
        longest = min(ASK * self.keep / KEEP, max(self._lease / 3, SHORTEST_ASK))
        # Waits that were woken together, as their subscription broke, do not stay together.
        return random.uniform(0.75, 1) * longest

    def receives_messages(self) -> bool:
        return self._notify and self.wait.registry.is_subscribed

    def change_refused_option(self, answer: Any) -> bool:
        """Changes the options if the answer is an error that other options may avoid. Returns whether it
        changed them: then the caller asks again."""
        if isinstance(answer, NoPermissionError) and self._notify:
            # The user may have no right to the channel: the wait continues without messages.
            self._notify = False
            return True
        if is_misuse(answer) and self.keep > self._lease:
            # `keep` may exceed the server's `dlock.max-ttl`. A valid lease does not, so its length replaces
            # `keep`.
            self.keep = self._lease
            return True
        return False


# The channel on which a server with RESP2 announces the changes of tracked keys.
INVALIDATIONS = b"__redis__:invalidate"


class Watcher(Protocol):
    """Watches one key: see `_hold.LossWatch`."""

    key: bytes

    def check(self) -> None:
        """Called when the key may have changed, or the subscription is new."""

    def disconnected(self) -> None:
        """Called when the subscription has ended."""


class WaitRegistry:
    """The waits of one client, by their numbers, and the state of its subscription."""

    def __init__(self, event_class: Callable[[], Any]) -> None:
        self.channel = "dlock:" + secrets.token_urlsafe(15)
        self.open_waits: set[Wait] = set()
        # The wait of each call whose message can still arrive.
        self.waits: dict[bytes, Wait] = {}
        # Whether the client is subscribed.
        self.is_subscribed = False
        # Whether the first attempt to subscribe has ended, in success or failure.
        self.has_tried_to_subscribe = False
        # When the subscriber last received something.
        self.received_at = now()
        # True after a PING without an answer.
        self.ping_sent = False
        # True once the server is no master any more: the subscriber reconnects through the address.
        self.must_reconnect = False
        # True after a grant that a message should have reported, until any message arrives.
        self.misses_message = False
        # When the last subscription ended.
        self._disconnected_at = -math.inf
        # When the last wait ended.
        self.idle_since = now()
        self.watchers: set[Watcher] = set()
        # False once the user was refused the channel `INVALIDATIONS`.
        self.may_watch = True
        # Whether the subscription to that channel is confirmed.
        self._is_watching = False
        # The CLIENT ID of the subscribed connection; None while there is none.
        self._client_id: int | None = None
        self._event_class = event_class

    def open(self) -> Wait:
        wait = Wait(self, self._event_class())
        self.open_waits.add(wait)
        return wait

    def on_client_id(self, client_id: Any) -> None:
        self._client_id = client_id if isinstance(client_id, int) else None

    def tracking_id(self) -> int | None:
        """Returns the CLIENT ID of the connection that receives the announcements of tracked keys. None if
        there is none."""
        return self._client_id if self._is_watching else None

    def channels(self) -> list[str | bytes]:
        """Returns the channels of a new connection, which needs a command for each: the user may have no
        right to `INVALIDATIONS`. That one is subscribed even if no hold is watched yet, as the subscriber
        sends nothing while it waits for a message."""
        return [self.channel, INVALIDATIONS] if self.may_watch else [self.channel]

    def on_error(self, why: BaseException) -> bool:
        """Handles an error of the subscription. Returns whether it continues: it does without
        `INVALIDATIONS`, whose command follows that of the client's channel."""
        if not isinstance(why, NoPermissionError) or not self.is_subscribed:
            return False
        self.may_watch = False
        return True

    def is_idle(self) -> bool:
        return not self.open_waits and not self.watchers and now() - self.idle_since > IDLE

    def on_message(self, message: dict[str, Any] | None) -> None:
        """Handles a message of the subscription, or None if redis-py's `get_message` timed out."""
        if message is None:
            # The subscription may be at a former master, to which the address led before.
            self.must_reconnect |= self.misses_message
            return
        self.received_at = now()
        self.ping_sent = False
        if message["type"] in ("subscribe", "ssubscribe"):
            self.is_subscribed = self.has_tried_to_subscribe = True
            if message["channel"] == INVALIDATIONS:
                self._is_watching = True
                self._check_all()
                return
            # Messages that were sent before the subscription are lost, so every wait asks the server.
            self.wake_all()
        elif message.get("channel") == INVALIDATIONS:
            keys = message["data"]
            if not isinstance(keys, list):
                self._check_all()  # a flush
                return
            for watcher in list(self.watchers):
                if watcher.key in keys:
                    watcher.check()
        elif message["type"] in ("message", "smessage"):
            self.misses_message = False
            data = message["data"]
            read = read_message(data if isinstance(data, bytes) else str(data).encode())
            wait = self.waits.get(read[0])
            if wait is not None:
                wait.on_message(*read)
                self.must_reconnect |= wait.refused

    def next_action(self) -> str:
        """Returns what the subscriber must do if it has received nothing for too long, or the server is no
        master any more: "ping" or "reconnect". Otherwise returns an empty string."""
        if self.must_reconnect and now() >= self._disconnected_at + LEAST_SUBSCRIBED:
            return "reconnect"
        silence = now() - self.received_at
        if silence > 2 * SILENCE and self.ping_sent:
            return "reconnect"
        if silence > SILENCE and not self.ping_sent:
            self.ping_sent = True
            return "ping"
        return ""

    def on_disconnected(self) -> None:
        self.is_subscribed = self.must_reconnect = self.misses_message = False
        self._client_id, self._is_watching = None, False
        self.has_tried_to_subscribe = True
        self.ping_sent = False
        self.received_at = self._disconnected_at = now()
        self.wake_all()
        for watcher in list(self.watchers):
            watcher.disconnected()

    def _check_all(self) -> None:
        for watcher in list(self.watchers):
            watcher.check()

    def wake_all(self) -> None:
        for wait in list(self.open_waits):
            wait.wake()


class Contention:
    """The locks that this client found taken a short while ago, and their start queues in a quorum.

    A client that may wait for a contended lock queues at once. If it asked all members of a quorum first, it
    would briefly take votes from the waiter at the head of the queue.

    A wait normally starts in the queue of the first member. If the client has noticed other clients in the
    queue of a later member, its next waits for the lock start there: that is the start queue of the lock."""

    def __init__(self) -> None:
        self._contended_until: dict[bytes, float] = {}
        # By key: the member of the start queue, and the time when it was set.
        self._start_queues: dict[bytes, tuple[int, float]] = {}
        # By key: the time before which the client does not look again for other clients in a later queue.
        self._next_look: dict[bytes, float] = {}

    def note_taken(self, key: bytes) -> None:
        if len(self._contended_until) >= MAX_ENTRIES:
            self._contended_until.clear()
        self._contended_until[key] = now() + CONTENDED_FOR

    def __contains__(self, key: bytes) -> bool:
        """Returns whether the lock is contended."""
        return now() < self._contended_until.get(key, 0.0)

    def move_to(self, key: bytes, member: int) -> None:
        """Makes the queue at `member` the start queue of the lock."""
        if len(self._start_queues) >= MAX_ENTRIES:
            self._start_queues.clear()
        self._start_queues[key] = member, now()

    def forget_start_queue(self, key: bytes) -> None:
        self._start_queues.pop(key, None)

    def start_queue(self, key: bytes, age: float = START_QUEUE_KEPT_FOR) -> int | None:
        """Returns the member of the start queue. None unless it was set within the last `age` seconds."""
        queue, set_at = self._start_queues.get(key, (None, -math.inf))
        return queue if now() < set_at + age else None

    def begin_looking_for_others(self, key: bytes) -> bool:
        """Returns whether the caller must look for other clients in a later queue now. Returns True at most
        once in `LOOK_INTERVAL` seconds, unless `allow_looking_again` is called."""
        if now() < self._next_look.get(key, 0.0):
            return False
        if len(self._next_look) >= MAX_ENTRIES:
            self._next_look.clear()
        self._next_look[key] = now() + LOOK_INTERVAL
        return True

    def allow_looking_again(self, key: bytes) -> None:
        """Lets the next look begin at once. Called when a look has found no other client in a later queue."""
        self._next_look.pop(key, None)
