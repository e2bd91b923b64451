"""The holders of one lock at each member of a quorum."""

from __future__ import annotations

# The tokens that hold the lock at one member, with the ms since each grant.
Tokens = dict[bytes, int]


class Holders:
    """The holders at each member, by its number. None for a member that does not show them. ``closed``: the
    number of members that are closed by a DELAY."""

    def __init__(self, holders: list[Tokens | None], majority: int, closed: int = 0) -> None:
        self._holders = holders
        self._majority = majority
        self._closed = closed

    def at(self, member: int) -> Tokens | None:
        """Returns the holders at a member. None if they are unknown."""
        return self._holders[member]

    def is_taken(self) -> bool:
        """Returns whether one token holds the lock at a majority of the members, or a DELAY keeps it closed
        there."""
        counts = [self._count(token) for tokens in self._holders for token in tokens or ()]
        return max([self._closed, *counts]) >= self._majority

    def queue_can_move(self, member: int) -> bool:
        """Returns whether the wait queue of a member can move. It can if the member has no holder, or does
        not show its holders. It also can if one of its holders has a majority, because that holder will
        release the lock. Members that do not show their holders count towards each majority. A holder
        without a majority may have died, and then its hold stays until the end of the lease."""
        tokens, unknown = self.at(member), self._holders.count(None)
        return not tokens or any(self._count(token) + unknown >= self._majority for token in tokens)

    def partial_holders(self, member: int, own: bytes) -> Tokens:
        """Returns the holders at a member, without ``own``, that are not known to have a majority."""
        tokens = self.at(member) or {}
        return {
            token: age
            for token, age in tokens.items()
            if token != own and self._count(token) < self._majority
        }

    def _count(self, token: bytes) -> int:
        """Returns the number of members where the token holds the lock."""
        return sum(token in tokens for tokens in self._holders if tokens is not None)
