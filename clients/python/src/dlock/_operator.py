"""The commands for operators, as steps: `lock.py` and `asyncio.py` carry them out."""

from __future__ import annotations

from typing import Any

from . import _protocol, _reading
from ._protocol import Args, Key, Steps

# INSPECT shows at most this many holders.
MOST_HOLDERS = 1000


def inspect(name: Key) -> Steps:
    return _reading.inspection((yield from _protocol.send(_protocol.inspect(name, MOST_HOLDERS))))


def waiters(name: Key, count: int) -> Steps:
    return _reading.waiters((yield from _protocol.send(_protocol.waiters(name, count))))


def page(cursor: Any, match: Key | None, waited: bool) -> Steps:
    """Returns the next cursor, None at the end, and the locks of one page of LIST."""
    command: Args = ("DLOCK.LIST", cursor)
    if match is not None:
        command += "MATCH", match
    if waited:
        command += ("WAITED",)
    following, locks = yield from _protocol.send(command)
    return None if int(following) == 0 else following, _reading.listed(locks)


def log(count: int, name: Key | None) -> Steps:
    return _reading.incidents((yield from _protocol.send(_protocol.log(name, count))))


def newest(logs: list[list[_reading.Incident]], count: int) -> list[_reading.Incident]:
    """Returns the incidents in the logs of some servers, newest first, at most ``count``."""
    if len(logs) == 1:
        return logs[0]
    return sorted((each for log in logs for each in log), key=lambda each: each.time, reverse=True)[:count]


def cancel(name: Key, token: str | bytes) -> Steps:
    return _protocol.send(_protocol.cancel(name, token))


def break_(name: Key) -> Steps:
    return _protocol.send(("DLOCK.BREAK", name))
