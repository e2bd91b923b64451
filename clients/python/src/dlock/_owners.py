"""The OWNER option of ACQUIRE. It names the owner of a token. The server's search for deadlocks treats all
tokens of one owner as one token. A thread or task is one owner for all its tokens: while it waits for one
lock, it releases no other."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
import weakref

from ._protocol import Args

# The owner's name contains at most this many bytes of the name of its thread or task.
NAME_LENGTH = 64


class Owner:
    """One thread or one task."""

    def __init__(self, name: str) -> None:
        self.pid = os.getpid()
        shown = name.encode("utf-8", "replace")[:NAME_LENGTH].decode("utf-8", "ignore").replace("/", "_")
        self._id = f"{secrets.token_urlsafe(6)}.{self.pid}.{shown}"
        self._renamed = 0

    def options(self) -> Args:
        """Returns the options of ACQUIRE that name this owner."""
        return ("OWNER", f"{self._id}.{self._renamed}".encode())

    def rename(self, options: Args) -> None:
        """Changes the owner's name in later requests. Does nothing if `options`, the options of an earlier
        ACQUIRE, do not contain the present name.

        Call this method when the owner no longer relies on the hold of that ACQUIRE, but the server may still
        have it. The old hold soon ends without the owner's help. But if the owner waited for the same lock
        under the same name, the server would report a deadlock: an owner that waits for itself."""
        if options[-2:] == self.options():
            self._renamed += 1


_threads = threading.local()
_tasks: weakref.WeakKeyDictionary[asyncio.Task[object], Owner] = weakref.WeakKeyDictionary()


def of_thread() -> Owner:
    """Returns the owner of this thread. A forked child has owners of its own."""
    found: Owner | None = getattr(_threads, "owner", None)
    if found is None or found.pid != os.getpid():
        found = _threads.owner = Owner(threading.current_thread().name)
    return found


def of_task() -> Owner:
    """Returns the owner of the current task."""
    task = asyncio.current_task()
    if task is None:
        # Another library than asyncio runs the coroutine.
        return of_thread()
    found = _tasks.get(task)
    if found is None or found.pid != os.getpid():
        found = _tasks[task] = Owner(task.get_name())
    return found
