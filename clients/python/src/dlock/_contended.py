"""Which resources are contended: found taken a short while ago. Whoever may wait for one of them queues at
once, as asking all masters first would briefly take votes from the waiter that has just been granted it."""

from __future__ import annotations

from ._hold import now

# For how long a resource that was found taken counts as contended (s).
MEMORY = 1.0
# For how long everybody queues at a later master before they look whether the first will do again (s).
QUEUE_MEMORY = 2.0
# So many resources are remembered.
MANY = 1000


class Contended:
    def __init__(self) -> None:
        self._until: dict[bytes, float] = {}
        # Where to queue, and until when.
        self._queues: dict[bytes, tuple[int, float]] = {}
        # Until then nobody looks again whether others queue elsewhere.
        self._looked_until: dict[bytes, float] = {}

    def note(self, key: bytes) -> None:
        if len(self._until) >= MANY:
            self._until.clear()
        self._until[key] = now() + MEMORY

    def note_queue(self, key: bytes, queue: int) -> None:
        """Records where others queue: see `Round.next_queue`."""
        if len(self._queues) >= MANY:
            self._queues.clear()
        self._queues[key] = queue, now() + QUEUE_MEMORY

    def forget_queue(self, key: bytes) -> None:
        self._queues.pop(key, None)

    def may_look(self, key: bytes) -> bool:
        """Whether to look where others queue: one at a time, and not all the time."""
        if now() < self._looked_until.get(key, 0.0):
            return False
        if len(self._looked_until) >= MANY:
            self._looked_until.clear()
        self._looked_until[key] = now() + MEMORY
        return True

    def saw_nobody(self, key: bytes) -> None:
        """`may_look` again: nothing suspicious was there."""
        self._looked_until.pop(key, None)

    def __contains__(self, key: bytes) -> bool:
        return now() < self._until.get(key, 0.0)

    def queue(self, key: bytes, age: float = QUEUE_MEMORY) -> int | None:
        """Where others queue, if that was noted no longer than `age` ago."""
        queue, until = self._queues.get(key, (None, 0.0))
        return queue if now() + QUEUE_MEMORY < until + age else None
