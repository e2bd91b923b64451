"""Owners: the names that the option OWNER of ACQUIRE carries. The server's search for deadlocks treats all
tokens of one owner as one token.

By default, an owner lasts from the first acquisition of a thread or task that holds nothing until it holds
nothing again. Its next acquisition has a fresh owner: the server may still have a hold or a position of the
earlier one, for which the thread does not wait any more."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import threading
import weakref
from typing import Protocol

# The owner's name contains at most this many bytes of the name of its thread or task.
NAME_LENGTH = 64
# The server accepts at most this many bytes of a label, and of the name of an owner.
LONGEST_TEXT = 255


class Held(Protocol):
    """A hold of an owner."""

    key: bytes

    def is_held(self) -> bool:
        """Returns whether its owner may rely on it."""


class Owner:
    """One name, and the holds that this process has under it."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self._holds: set[Held] = set()

    def add(self, hold: Held) -> None:
        self._holds.add(hold)

    def remove(self, hold: Held) -> None:
        self._holds.discard(hold)

    def holds_any(self) -> bool:
        """Returns whether this process holds any lock under this name."""
        while self._holds:
            try:
                hold = next(iter(self._holds))
            except (StopIteration, RuntimeError):
                continue  # another thread has ended a hold meanwhile
            if hold.is_held():
                return True
            self.remove(hold)
        return False

    def holds(self, key: bytes) -> bool:
        """Returns whether this process holds the lock with this key, on any server, under this name."""
        return any(hold.key == key and hold.is_held() for hold in list(self._holds))


class Caller:
    """One thread or one task."""

    def __init__(self, name: str) -> None:
        self.pid = os.getpid()
        shown = name.encode("utf-8", "replace")[:NAME_LENGTH].decode("utf-8", "ignore").replace("/", "_")
        self._id = f"{secrets.token_urlsafe(6)}.{self.pid}.{shown}"
        # The default label of the caller's requests: host, process, and thread or task.
        self.label = f"{socket.gethostname()}:{self.pid} {shown}".encode("utf-8", "replace")[:LONGEST_TEXT]
        self._owners = 0
        self._owner = self._fresh_owner()

    def owner(self) -> Owner:
        """Returns the owner of the next acquisition: the present one while it holds a lock, else a fresh
        one."""
        if not self._owner.holds_any():
            self._owner = self._fresh_owner()
        return self._owner

    def _fresh_owner(self) -> Owner:
        self._owners += 1
        return Owner(f"{self._id}.{self._owners}".encode())


_threads = threading.local()
_tasks: weakref.WeakKeyDictionary[asyncio.Task[object], Caller] = weakref.WeakKeyDictionary()
_named: weakref.WeakValueDictionary[bytes, Owner] = weakref.WeakValueDictionary()


def this_thread() -> Caller:
    """Returns this thread. In a forked child, it is another one than in the parent."""
    found: Caller | None = getattr(_threads, "caller", None)
    if found is None or found.pid != os.getpid():
        found = _threads.caller = Caller(threading.current_thread().name)
    return found


def this_task() -> Caller:
    """Returns the current task."""
    task = None
    with contextlib.suppress(RuntimeError):  # called outside the event loop
        task = asyncio.current_task()
    if task is None:
        # Or another library than asyncio runs the coroutine.
        return this_thread()
    found = _tasks.get(task)
    if found is None or found.pid != os.getpid():
        found = _tasks[task] = Caller(task.get_name())
    return found


def named(name: bytes) -> Owner:
    """Returns the owner that the user has named. It is the same object for each use of the name."""
    return _named.setdefault(name, Owner(name))
