"""Holders are stopped inside a transaction until their lease has ended, and continue beside the next holder.
With each form of contrib/fencing (column, triggers, gate), no update is lost. Without a fence, updates are
lost.

DLOCK_FENCING_ROUNDS sets the number of rounds for each form, over one server and over a quorum."""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import os
import pathlib
import queue
import random
import signal
import subprocess
import sys
import threading

import pytest
from conftest import MODULE, SERVERS, Server, until
from databases import MariaDB, PostgreSQL, SQLite, require_databases

ROUNDS = int(os.environ.get("DLOCK_FENCING_ROUNDS", "4"))
WRITER = pathlib.Path(__file__).parent / "fence_writer.py"
FORMS = "none", "column", "triggers", "gate"

# A holder reads and writes in one transaction, or in two. The step "claim" raises the fence in the
# database.
ONE = "begin", "claim", "read", "write", "commit"
TWO = "begin", "claim", "read", "commit", "begin", "claim", "write", "commit"
# Plans of stopped holders: the steps, and the number of steps after which the holder is stopped. Each stop
# is between the read and the last commit.
STOPS = [(ONE, 3), (ONE, 4), (TWO, 4), (TWO, 5), (TWO, 6), (TWO, 7)]


class Writer:
    """A process that runs fence_writer.py."""

    def __init__(self, ports, database):
        self.process = subprocess.Popen(
            [sys.executable, WRITER, json.dumps(ports), json.dumps(database)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        self.lines = queue.Queue()
        # The steps without an answer. The writer first prints the id of its database session.
        self.asked = collections.deque(["connect"])
        # True once the writer has printed that its step has to wait for SQLite.
        self.says_it_waits = False
        threading.Thread(target=self.read, daemon=True).start()
        self.session = int(self.answer())

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))

    def send(self, *words):
        self.asked.append(words[0])
        self.process.stdin.write("\t".join(map(str, words)) + "\n")

    def answered(self):
        """Returns whether an answer is there. Removes the lines "waits", which are no answers."""
        while not self.lines.empty() and self.lines.queue[0] == "waits":
            self.lines.get()
            self.says_it_waits = True
        return not self.lines.empty()

    def answer(self):
        step = self.asked.popleft()
        try:
            until(
                f"the writer answers {step}",
                lambda: self.answered() or self.process.poll() is not None,
                limit=120,
            )
        except AssertionError:
            # The writer prints where it hangs, and ends.
            self.process.send_signal(signal.SIGABRT)
            self.resume()
            self.process.wait()
            raise
        assert self.answered(), f"the writer has ended at {step}"
        self.says_it_waits = False
        return self.lines.get()

    def do(self, *words):
        self.send(*words)
        return self.answer()

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)
        stat = pathlib.Path(f"/proc/{self.process.pid}/stat")
        until("the writer is stopped", lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        self.process.kill()
        self.process.communicate()


class Scene:
    """Three writers, and the database that they write to."""

    def __init__(self, database, masters):
        self.database = database
        address = (
            {"path": str(database.folder / "shop.db")}
            if database.name == "sqlite"
            else {"port": database.port}
        )
        self.observer = database.connect()
        self.writers = []
        for _ in range(3):
            self.writers.append(Writer([m.port for m in masters], {"kind": database.name, **address}))

    def close(self):
        for writer in self.writers:
            writer.kill()
        self.observer.close()

    def waits(self, writer):
        if self.database.name == "sqlite":
            return writer.says_it_waits
        return self.database.waits(self.observer, writer.session)

    def play(self, settings, stopped_plan, next_plan):
        """Plays a round: a holder is stopped, and the next holder acquires the lock and writes. The stopped
        holder continues after `continue_after` steps of the next holder, or earlier if the next holder waits
        for the stopped holder's transaction. Returns the last answers of both.

        ``settings``: "server" or "quorum", the form, the row and the isolation level."""
        (steps, stop_after), (next_steps, continue_after) = stopped_plan, next_plan
        # The writers take turns.
        self.writers.append(self.writers.pop(0))
        overtaken, successor = self.writers[:2]
        for writer in overtaken, successor:
            assert writer.do("begin_round", *settings) == "ok"
        overtaken_fence = int(overtaken.do("acquire").split()[1])
        for step in steps[:stop_after]:
            overtaken.do(step)
        overtaken.stop()
        for step in steps[stop_after:]:
            overtaken.send(step)
        # This acquisition waits until the lease of the stopped holder has ended.
        successor_fence = int(successor.do("acquire").split()[1])
        assert successor_fence > overtaken_fence

        is_stopped = True
        for number, step in enumerate(next_steps):
            if is_stopped and number == continue_after:
                overtaken.resume()
                is_stopped = False
            successor.send(step)
            if is_stopped:
                until(
                    "the next holder continues or waits",
                    lambda: successor.answered() or self.waits(successor),
                )
                if not successor.answered():
                    overtaken.resume()
                    is_stopped = False
            last = successor.answer()
        if is_stopped:
            overtaken.resume()
        successor.do("release")
        answers = [overtaken.answer() for _ in steps[stop_after:]]
        overtaken.do("release")
        return answers[-1], last


def plans(seed):
    """Returns an endless iterator that goes through all pairs of a stopped holder's plan and the next
    holder's plan again and again, in a random order. Two fixed pairs come first each time, so that each run
    has rounds in which the stopped holder continues only after the last step of the next holder."""
    pairs = [
        (stopped, (steps, continue_after))
        for stopped in STOPS
        for steps in (ONE, TWO)
        for continue_after in range(1, len(steps) + 1)
    ]
    random.Random(seed).shuffle(pairs)
    return itertools.cycle([((TWO, 5), (TWO, len(TWO))), ((TWO, 4), (TWO, len(TWO))), *pairs])


@pytest.fixture(scope="module")
def masters():
    if not SERVERS or not MODULE:
        pytest.fail("set DLOCK_TEST_SERVERS and DLOCK_TEST_MODULE, or run make fencing")
    with contextlib.ExitStack() as stack:
        masters = [Server(SERVERS[min(SERVERS)]) for _ in range(3)]
        for master in masters:
            stack.callback(master.stop)
        yield masters


@pytest.fixture(params=[PostgreSQL, MariaDB, SQLite], ids=lambda kind: kind.name)
def scene(request, masters):
    if request.param is not SQLite:
        require_databases()
    with contextlib.ExitStack() as stack:
        database = request.param()
        stack.callback(database.stop)
        database.execute(
            "CREATE TABLE account (id INTEGER PRIMARY KEY, total INTEGER NOT NULL, fence BIGINT NOT NULL)",
            "CREATE TABLE fenced_account (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)",
            *(f"INSERT INTO {table} VALUES ({row}, 0{fence})" for row in range(8)
              for table, fence in (("account", ", 0"), ("fenced_account", ""))),
        )  # fmt: skip
        database.install("fenced_account")
        scene = Scene(database, masters)
        stack.callback(scene.close)
        yield scene


@pytest.mark.timeout(120 + 60 * ROUNDS)
def test_a_fence_keeps_every_acknowledged_update(scene, record_property):
    seed = int(os.environ.get("DLOCK_SEED", random.randrange(2**32)))
    print(f"DLOCK_SEED={seed}")
    for row, (topology, form) in enumerate(itertools.product(("server", "quorum"), FORMS)):
        if isinstance(scene.database, SQLite) and topology == "quorum":
            scene.database.use_write_ahead_log()  # the rounds over one server use SQLite's default journal
        counted = collections.Counter()
        isolations = itertools.cycle(scene.database.isolations)
        for plan, isolation in zip(itertools.islice(plans(seed), ROUNDS), isolations):
            for role, answer in zip(("stopped", "next"), scene.play((topology, form, row, isolation), *plan)):
                counted[f"{role} {'wrote' if answer == 'ok' else 'refused'}"] += 1
        table = "fenced_account" if form == "triggers" else "account"
        cursor = scene.observer.cursor()
        cursor.execute(f"SELECT total FROM {table} WHERE id = {row}")
        [(total,)] = cursor.fetchall()
        scene.observer.commit()
        lost = counted["stopped wrote"] + counted["next wrote"] - total
        what = f"{scene.database.name}, {topology}, fence by {form}"
        record_property("measured", f"{what}: {ROUNDS} rounds, {lost} lost; {dict(counted)}")
        if form == "none":
            assert lost > 0
        else:
            assert lost == 0
            assert counted["stopped refused"] > 0, "no holder was overtaken"
        assert counted["next wrote"] > 0
