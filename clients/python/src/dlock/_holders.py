"""The holders of one lock, as the members of a quorum see them."""

from __future__ import annotations

# Tokens with the ms since each grant.
Tokens = dict[bytes, int]


class Holders:
    """The holders at each member. None stands for a member that does not show them."""

    def __init__(self, tokens: list[Tokens | None], majority: int) -> None:
        self._tokens = tokens
        self._majority = majority

    def at(self, member: int) -> Tokens | None:
        """Returns the holders at a member. None if they are unknown."""
        return self._tokens[member]

    def has_majority(self) -> bool:
        """Returns whether one holder has a majority."""
        return any(self._count(token) >= self._majority for shown in self._tokens for token in shown or ())

    def queue_can_move(self, member: int) -> bool:
        """Returns whether the wait queue of a member can move: one of its holders has, or may have, a
        majority. A holder without a majority does not release its hold there."""
        shown, unknown = self.at(member), self._tokens.count(None)
        return not shown or any(self._count(token) + unknown >= self._majority for token in shown)

    def partial_holders(self, member: int, own: bytes) -> Tokens:
        """Returns the holders at a member other than ``own`` that have no majority, as far as is known."""
        shown = self.at(member) or {}
        return {
            token: age for token, age in shown.items() if token != own and self._count(token) < self._majority
        }

    def _count(self, token: bytes) -> int:
        """Returns the number of members where the token holds the lock."""
        return sum(token in shown for shown in self._tokens if shown is not None)
