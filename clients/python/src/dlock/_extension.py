"""EXTEND on all members, and the hold anew on those that have forgotten it.

A member that restarted without its data, or that was away for a lease, holds nothing any more. If one after
the other did, the hold would be lost, although a majority had it all the time. So such a member is asked for
it again, by the rule of the Rust client: only once a majority has extended without it, and what it grants is
no vote, as only a later EXTEND is. `crates/quorum/src/extension.rs` says why."""

from __future__ import annotations

from typing import Any, Callable

from redis.exceptions import RedisError

from . import _protocol
from ._hold import Hold, Steps
from ._members import Begin, Holders, Quorum
from ._protocol import Args


class Extension:
    def __init__(
        self, quorum: Quorum, key: bytes, terms: Args, holders: Holders, decided: Callable[..., Steps]
    ) -> None:
        self._quorum = quorum
        self._key = key
        self._terms = terms
        self._holders = holders
        self._decided = decided

    def ask(self, hold: Hold, lease: int) -> Steps:
        """Whether a majority has the new lease."""
        extended = False
        not_held: dict[int, Steps] = {}

        def heard(member: int, answer: Any) -> Steps | None:
            if answer == 1:
                self._holders.note(member)
            elif answer == 0:
                not_held[member] = self._restore(member, hold, lease)
            # An answer can come from another thread while it is decided: whoever takes the steps does them.
            return not_held.pop(member, None) if extended else None

        command = _protocol.extend(self._key, hold.token, lease)
        extended = bool((yield from self._decided(command, lambda answer: answer == 1, heard=heard)))
        for member in list(not_held) if extended else ():
            steps = not_held.pop(member, None)
            if steps is not None:
                yield Begin(steps, member)
        return int(extended)

    def _restore(self, member: int, hold: Hold, lease: int) -> Steps:
        # With a position in the queue, for others may be there already. The next extension tells what came of
        # it, and keeps the position.
        command = _protocol.acquire(self._key, hold.token, lease, (*self._terms, "QUEUE", lease))
        try:
            if not self._holders.has_forgotten(member, lease / 1000) or hold.over or hold.is_lost():
                return
            # Without an answer, the server may carry it out after the first RELEASE.
            hold.releases = 2
            if hold.members_asked is not None:
                hold.members_asked.add(member)
            if (yield command) is not None:
                self._holders.note(member)
        except RedisError:
            pass  # in its grace period, for example: the next extension asks again
