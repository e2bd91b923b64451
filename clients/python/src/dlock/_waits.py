"""Waiting in the queue. One subscription serves every wait of a client: each wait has a number, and the
server publishes it with what became of the wait. Messages can be lost, so a wait also asks again by its own
clock. Does no I/O: `_threads.py` and `_tasks.py` listen."""

from __future__ import annotations

import itertools
import secrets
from typing import Any, Callable

from ._hold import now

# For how long the server keeps a position that is not asked for again. If the waiter dies, a grant to it
# lasts no longer than that either.
KEEP = 10.0
# How often a wait asks again although no message came.
ASK = KEEP / 3
# Without any message for this long, the listener sends a PING; after twice as long it connects anew.
SILENCE = 3.0
# The listener stays for this long after the last wait.
IDLE = 10.0


class Wait:
    """A wait, and what was heard of it."""

    def __init__(self, desk: Desk, number: str, event: Any) -> None:
        self.desk = desk
        self.number = number
        # threading.Event or asyncio.Event
        self.event = event
        # What the server has published of its end.
        self.granted = False
        self.cancelled = False

    @property
    def listening(self) -> bool:
        return self.desk.ready

    def close(self) -> None:
        self.desk.waits.pop(self.number, None)
        self.desk.idle_since = now()


class Desk:
    """The waits of one client."""

    def __init__(self, event: Callable[[], Any]) -> None:
        self.channel = "dlock:" + secrets.token_urlsafe(15)
        self.waits: dict[str, Wait] = {}
        # Whether the subscription is live.
        self.ready = False
        # Whether that is known: it came about, or failed.
        self.tried = False
        self.heard_at = now()
        self.asked = False
        self.idle_since = now()
        self._event = event
        self._numbers = itertools.count(1)

    def open(self) -> Wait:
        wait = Wait(self, str(next(self._numbers)), self._event())
        self.waits[wait.number] = wait
        return wait

    def is_idle(self) -> bool:
        return not self.waits and now() - self.idle_since > IDLE

    def heard(self, message: dict[str, Any] | None) -> None:
        """A message of the subscription, or None where none came for a while."""
        if message is None:
            return
        self.heard_at = now()
        self.asked = False
        if message["type"] in ("subscribe", "ssubscribe"):
            self.ready = self.tried = True
            # What was published before it is lost: everybody asks.
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

    def silent(self) -> str:
        """What a listener does that hears nothing: "ping", "reconnect", or nothing."""
        quiet = now() - self.heard_at
        if quiet > 2 * SILENCE and self.asked:
            return "reconnect"
        if quiet > SILENCE and not self.asked:
            self.asked = True
            return "ping"
        return ""

    def disconnected(self) -> None:
        self.ready = False
        self.tried = True
        self.asked = False
        self.heard_at = now()
        self.wake_all()

    def wake_all(self) -> None:
        for wait in list(self.waits.values()):
            wait.event.set()
