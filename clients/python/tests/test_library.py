"""Plays the files of conformance/ that are marked `library`, and those of conformance/library, through the
library, with locks for threads and for asyncio. conformance/README.md explains the files."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from conftest import LIMIT, protocols, until
from redis.exceptions import LockError, RedisError
from test_conformance import FOLDER, STEP_KEYS, Connection, Error, Playing, options

MARKED = [path for path in FOLDER.glob("*.json") if json.loads(path.read_text()).get("library")]
FILES = sorted(MARKED) + sorted(FOLDER.glob("library/*.json"))
CALLS = {"DLOCK.ACQUIRE", "DLOCK.RELEASE", "DLOCK.EXTEND", "DLOCK.HOLDS"}


class Caller:
    """Takes the place of a connection: calls the library for the commands in `CALLS`, and sends all other
    commands to the server."""

    def __init__(self, playing):
        self.playing = playing
        self.direct = Connection(playing.port, playing.protocol)
        # For each command whose reply has not been read: the future of the call, and the function that turns
        # its outcome into the reply. None for a command that was sent to the server.
        self.calls = deque()
        self.renew = False

    def send(self, words):
        if words[0] in CALLS:
            command, key, owner, *arguments = words
            self.calls.append(getattr(self, command[6:].lower())((key, owner), *arguments))
        else:
            # A step names an owner in place of a token. Only the library knows the token of this owner, so
            # PTTL is sent without a token.
            self.direct.send(words[:2] if words[0] == "DLOCK.PTTL" else words)
            self.calls.append(None)

    def read(self):
        if self.calls[0] is None:
            self.calls.popleft()
            return self.direct.read()
        future, answer = self.calls[0]
        try:
            outcome = future.result(LIMIT)
        except LockError as why:
            # An error of the server begins with a word in capitals. Any other error means "not held".
            outcome, answer = why, lambda why: Error(why) if str(why)[:5].isupper() else 0
        except RedisError as why:
            outcome, answer = why, lambda why: Error(f"NOANSWER {why}")
        self.calls.popleft()
        return answer(outcome)

    def close(self):
        """Cancels all calls under way."""
        for call in self.calls:
            if call is not None and not call[0].done():
                call[0].cancel()

    def acquire(self, owner, ttl, *arguments):
        lock = self.playing.owners.get(owner)
        if lock is not None and lock.fence is not None and not lock.lost.is_set():
            # See conformance/README.md: an owner that already holds the lock gets the fence of its hold.
            return finished_call(lock.fence)
        wanted = dict(timeout=int(ttl) / 1000, auto_renew=self.renew, blocking=False, blocking_timeout=None)
        words = deque(arguments)
        while words:
            word = words.popleft()
            if word == "SHARED":
                wanted["shared"] = True
            elif word == "PERMITS":
                wanted["permits"] = int(words.popleft())
            else:
                assert word == "BLOCK", f"the library has no {word}"
                # BLOCK 0 waits without a limit.
                wanted["blocking"], wanted["blocking_timeout"] = True, int(words.popleft()) / 1000 or None
        lock = self.playing.lock(owner, **wanted)
        return self.playing.start(lock, "acquire"), lambda granted: claimed_fence(lock) if granted else None

    def release(self, owner, _all="ALL"):
        # The library always sends RELEASE with ALL.
        return self.call(owner, lambda _: 1, "release")

    def extend(self, owner, ttl):
        return self.call(owner, int, "extend", int(ttl) / 1000, True)

    def holds(self, owner):
        return self.call(owner, int, "owned")

    def call(self, owner, answer, method, *arguments):
        lock = self.playing.owners.get(owner)
        if lock is None:
            return finished_call(0)
        return self.playing.start(lock, method, *arguments), answer


def claimed_fence(lock):
    """Returns the fence of a hold that was granted, once it is claimed. The server may read a later claim
    after the next command of the file, which has ended the hold: then the claim briefly has the lock."""
    hold, fence = lock.local.hold, lock.fence
    until("the hold is claimed", lambda: hold.is_claimed or hold.is_lost())
    return fence


def finished_call(reply):
    """Returns an entry of `Caller.calls` with this reply."""
    future = Future()
    future.set_result(reply)
    return future, lambda outcome: outcome


class LibraryPlaying(Playing):
    """Plays a file through the library, over a client behind a proxy."""

    def __init__(self, locks, proxy, protocol):
        super().__init__(proxy.target, protocol)
        self.locks, self.proxy = locks, proxy
        self.client = locks.client(proxy.url, protocol=protocol)
        # The lock of each owner. An owner is a pair of a key and a name.
        self.owners = {}
        # By name of an owner: the event that is set once its hold is lost.
        self.loss_events = {}
        self.threads = ThreadPoolExecutor()

    def connect(self):
        return Caller(self)

    def lock(self, owner, **wanted):
        self.loss_events[owner[1]] = lost = threading.Event()
        lock = self.locks.lock(
            self.client, owner[0], thread_local=False, on_lost=lambda why: lost.set(), **wanted
        )
        self.owners[owner] = lock
        return lock

    def start(self, lock, method, *arguments):
        if self.locks.loop is None:
            return self.threads.submit(getattr(lock, method), *arguments)
        # `lock` is a `Blocking` of conftest.py, around an asyncio lock. The methods of `lock.lock` return
        # coroutines.
        call = getattr(lock.lock, method)(*arguments)
        return asyncio.run_coroutine_threadsafe(call, self.locks.loop.loop)

    def step(self, step):
        step = dict(step)
        # `lose`: the proxy drops the reply to this command. `lost`: the hold of the owner of this name must
        # be lost.
        on, renew, unanswered_command = step.get("on", "a"), step.pop("renew", False), step.pop("lose", None)
        caller = self.connections.setdefault(on, self.connect())
        caller.renew = renew
        for name, value in step.pop("fault", {}).items():
            if name == "drop":
                self.proxy.drop()
            else:
                setattr(self.proxy, name, value)
        if unanswered_command is not None:
            replies_lost_before = self.proxy.lost
            self.proxy.match, self.proxy.cut_replies = unanswered_command.encode(), 1
        owner = step.pop("lost", None)
        if step.keys() & STEP_KEYS:
            super().step(step)
        if unanswered_command is not None:
            until("a reply is lost", lambda: self.proxy.lost > replies_lost_before)
            # The outcome of the call is not compared.
            while caller.calls:
                caller.read()
        if owner is not None:
            assert self.loss_events[owner].wait(LIMIT), f"on_lost of {owner} is not called"

    def fits_pattern(self, pattern, wanted, found):
        # The library makes its own tokens, so tokens are not compared.
        if pattern == "map":
            wanted = {name: value for name, value in wanted.items() if name != "token"}
        return super().fits_pattern(pattern, wanted, found)


@pytest.mark.parametrize("shared_server, protocol", protocols(), indirect=["shared_server"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_library_keeps_the_contract(server, proxy, locks, path, protocol):
    scenario = json.loads(path.read_text())
    if locks.loop is None and any("close" in step for step in scenario["steps"]):
        pytest.skip("a thread cannot be cancelled")
    playing = LibraryPlaying(locks, proxy, protocol)
    with options(server, scenario):
        try:
            for step in scenario["steps"]:
                playing.step(step)
        finally:
            for caller in playing.connections.values():
                caller.direct.close()
    # A call that is still under way ends when `options` flushes the server.
    playing.threads.shutdown()
