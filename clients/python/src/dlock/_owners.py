"""Owners: the parties of the server's deadlock search. Each thread or task is one owner, because it releases
nothing while it waits."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
import weakref

from ._protocol import Args

# Number of bytes of the thread's or task's name that the owner's name contains.
NAME_LENGTH = 64


class Owner:
    """One thread or one task."""

    def __init__(self, name: str) -> None:
        self.pid = os.getpid()
        shown = name.encode("utf-8", "replace")[:NAME_LENGTH].decode("utf-8", "ignore").replace("/", "_")
        self._id = f"{secrets.token_urlsafe(6)}.{self.pid}.{shown}"
        self._renamed = 0

    def terms(self) -> Args:
        """Returns ACQUIRE's terms for this owner."""
        return ("OWNER", f"{self._id}.{self._renamed}".encode())

    def rename(self, terms: Args) -> None:
        """Changes the owner's name in later requests if `terms`, those of an earlier ACQUIRE, contain its
        present name. Called when the server may still have a hold under these terms that the owner has given
        up: a wait of the owner for that hold is no deadlock, as the hold ends by itself."""
        if terms[-2:] == self.terms():
            self._renamed += 1


_threads = threading.local()
_tasks: weakref.WeakKeyDictionary[asyncio.Task[object], Owner] = weakref.WeakKeyDictionary()


def of_thread() -> Owner:
    """Returns the owner of this thread. A fork has owners of its own."""
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
