"""Old and new clients lock one key, each in a process that may be killed. There are never two holders, and
every wait ends. Old clients set a string (SET NX PX), new ones use dlock. The programs of the processes are
in clients/fleet."""

from __future__ import annotations

import bisect
import contextlib
import os
import pathlib
import random
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import pytest
import redis
from conftest import LIMIT, Server, patient_client, until

FLEET = pathlib.Path(__file__).parents[2] / "fleet"
SECONDS = float(os.environ.get("DLOCK_SECONDS", "10"))
KEY = "fleet"
LEASE = 500  # ms
# The kinds of clients in the fleet.
OLD = ["redis-py", "redis-py", "redlock", "redlock", "set-nx"]
NEW = ["dlock", "dlock", "ioredis", "ioredis", "commands"]


@dataclass
class Hold:
    kind: str
    # The start of the wait for the hold.
    waited_from: float
    acquired_at: float
    # The end of the lease, as the client counts it.
    lease_end: float
    # When the process was about to send its request to release the hold. None if it was killed before.
    released_at: float | None = None

    def end(self):
        """Returns the time of the release, or the end of the lease if the release came later or never."""
        return self.lease_end if self.released_at is None else min(self.released_at, self.lease_end)


class FleetClient:
    """A process of the fleet, with its output."""

    def __init__(self, kind, port):
        self.kind = kind
        self.holds = []
        # The start of the present wait. None if the process does not wait.
        self.waits_from = None
        # Set while the process holds the lock.
        self.holds_lock = threading.Event()
        self.killed_at = None
        node = kind in ("redlock", "ioredis")
        program = ["node", FLEET / "member.js"] if node else [sys.executable, FLEET / "member.py"]
        self.process = subprocess.Popen(
            [*program, kind, str(port), KEY, str(LEASE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            if not line.endswith("\n"):
                return  # the process was killed while it wrote this line
            what, *moments = line.split()
            at, *rest = map(float, moments)
            if what == "waits":
                self.waits_from = at
            elif what == "holds":
                self.holds.append(Hold(self.kind, self.waits_from, at, rest[0]))
                self.waits_from = None
                self.holds_lock.set()
            elif what == "late":
                self.waits_from = None
            elif what == "leaves":
                self.holds_lock.clear()
                self.holds[-1].released_at = at

    def kill(self):
        self.process.kill()
        self.killed_at = time.monotonic()
        self.process.wait()
        self.reader.join()

    def begin_to_stop(self):
        self.process.stdin.close()

    def stop(self):
        """Stops the process as a deployment does: the process finishes its wait and its hold first."""
        self.begin_to_stop()
        assert self.process.wait(LIMIT) == 0, f"{self.kind} failed"
        self.reader.join()
        assert self.waits_from is None, f"{self.kind} waited in vain"


class Fleet:
    def __init__(self, port, kinds):
        self.port = port
        self.clients = [FleetClient(kind, port) for kind in kinds]
        self.ended = []

    def run(self, seconds):
        """Lets the fleet run for `seconds`. Kills and replaces processes, half of the time the holder."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(random.uniform(0.1, 0.8), left))
            self.check()
            client = random.choice(self.clients)
            if random.random() < 0.5:
                client = until("a process holds the lock", self.holder)
            client.kill()
            self.replace(self.clients.index(client), client.kind)

    def check(self):
        """Fails if a process has ended by itself."""
        for client in self.clients:
            status = client.process.poll()
            assert status is None, (
                f"{client.kind} ended with {status}: Node needs NODE_PATH for its libraries"
            )

    def has_run_long_enough(self):
        """Returns whether each kind has held the lock, and a holder was killed."""
        holds = [hold for client in self.ended + self.clients for hold in client.holds]
        killed = any(hold.released_at is None for client in self.ended for hold in client.holds)
        return killed and {hold.kind for hold in holds} == {*OLD, *NEW}

    def holder(self):
        return next((client for client in self.clients if client.holds_lock.is_set()), None)

    def replace(self, index, kind):
        if self.clients[index].killed_at is None:
            self.clients[index].stop()
        self.ended.append(self.clients[index])
        self.clients[index] = FleetClient(kind, self.port)

    def stop(self):
        """Returns all holds in their order, and the times at which waiters were killed."""
        # All at once: an old client rarely gets the lock while new ones go on.
        for client in self.clients:
            client.begin_to_stop()
        for client in self.clients:
            client.stop()
        processes = self.ended + self.clients
        holds = sorted(
            (hold for client in processes for hold in client.holds), key=lambda hold: hold.acquired_at
        )
        return holds, [client.killed_at for client in processes if client.waits_from is not None]

    def close(self):
        for client in self.clients:
            client.kill()


def overlaps(holds):
    # A process that reported its hold only after the end of the lease has held nothing.
    held = [hold for hold in holds if hold.acquired_at < hold.end()]
    return [(a, b) for a, b in zip(held, held[1:]) if b.acquired_at < a.end()]


def waits_after_old_holds(holds, waiters_killed_at):
    """Returns the seconds between the end of each hold of an old client and the next grant to a waiter of
    dlock. Leaves out a grant if a waiter was killed in the time from 1 s before the old client's hold to this
    grant: the server may have granted the lock to the killed waiter first."""
    return [
        b.acquired_at - a.end()
        for a, b in zip(holds, holds[1:])
        if a.kind in OLD and b.kind in NEW and b.waited_from < a.end()
        if not any(a.acquired_at - 1 < killed_at < b.acquired_at for killed_at in waiters_killed_at)
    ]


def check(holds, waiters_killed_at, capsys, what):
    assert overlaps(holds) == []
    kinds = {kind: sum(hold.kind == kind for hold in holds) for kind in sorted({*OLD, *NEW})}
    # Every kind has held the lock, a holder was killed, and a client released after its lease.
    assert all(kinds.values()), kinds
    killed = sum(hold.released_at is None for hold in holds)
    late = sum(hold.released_at is not None and hold.released_at > hold.lease_end for hold in holds)
    assert killed
    assert late
    waits = sorted(waits_after_old_holds(holds, waiters_killed_at))
    assert waits
    with capsys.disabled():
        soon = bisect.bisect(waits, 0.05) / len(waits)
        print(
            f"\n{what}: holds {kinds}; of killed processes {killed}, released late {late}; "
            "waits after the hold of an old client: "
            f"p50 {statistics.median(waits) * 1000:.0f} ms, max {waits[-1] * 1000:.0f} ms, "
            f"{soon:.0%} of {len(waits)} within 50 ms"
        )


@pytest.fixture
def honouring_server(shared_server):
    """A server where any string at a key counts as a held lock."""
    server = Server(shared_server.program, "--dlock.honour-strings", "yes")
    yield server
    server.stop()


@contextlib.contextmanager
def fleet(server, kinds):
    made = Fleet(server.port, kinds)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.timeout(SECONDS + 120)
def test_a_mixed_fleet_never_has_two_holders(honouring_server, capsys):
    with fleet(honouring_server, OLD + NEW) as running:
        running.run(SECONDS)
        while not running.has_run_long_enough():
            running.run(1)  # old clients rarely get the lock while new clients queue
        holds, waiters_killed_at = running.stop()
    check(holds, waiters_killed_at, capsys, "mixed")


@pytest.mark.timeout(SECONDS + 120)
def test_a_fleet_that_moves_to_dlock_and_back_never_has_two_holders(honouring_server, capsys):
    step = SECONDS / (2 * len(OLD) + 2)
    with fleet(honouring_server, OLD) as running, patient_client(honouring_server) as r:
        for kinds in NEW, OLD:
            r.config_set("dlock.honour-strings", "yes")
            for index, kind in enumerate(kinds):
                running.run(step)
                running.replace(index, kind)
            if kinds is NEW:
                until("no old client holds the lock", lambda: r.type(KEY) != b"string")
                r.config_set("dlock.honour-strings", "no")
            running.run(step)
        holds, waiters_killed_at = running.stop()
    check(holds, waiters_killed_at, capsys, "moved and back")


def test_a_late_call_of_an_old_holder_changes_nothing(r):
    """The rules of docs/moving.md for redis-py's lock, and for commands that would overwrite the key."""
    old = r.lock(KEY, timeout=0.05)
    for late in old.release, lambda: old.extend(1), old.reacquire, old.owned, old.locked:
        assert old.acquire()
        until("the hold has expired", lambda: not r.exists(KEY))
        assert r.execute_command("DLOCK.ACQUIRE", KEY, "new", 60_000)
        for call in late, lambda: r.getset(KEY, "string"), lambda: r.append(KEY, "string"):
            with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
                call()
        assert r.execute_command("DLOCK.RELEASE", KEY, "new") == 1


def test_overlaps_finds_two_holders():
    def hold(acquired_at, lease_end, released_at):
        return Hold("dlock", 0, acquired_at, lease_end, released_at)

    assert overlaps([hold(1, 9, 2), hold(2, 9, 3), hold(4, 5, 8), hold(5, 9, None)]) == []
    delayed_past_lease = hold(2, 1, 3)
    assert overlaps([hold(1, 9, 3), delayed_past_lease, hold(3, 9, 4)]) == []
    assert len(overlaps([hold(1, 9, 4), delayed_past_lease, hold(3, 9, 4)])) == 1
    assert len(overlaps([hold(1, 9, 3), hold(2, 9, 4)])) == 1
    assert len(overlaps([hold(1, 9, None), hold(8, 9, 9)])) == 1
