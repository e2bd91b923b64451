"""Shows what a stale holder does without and with a fence: a worker reads a total, is stopped past its lease, and
continues after the next worker has written.

`demo.py URL` runs the demonstration. URL is that of a server with the module."""

from __future__ import annotations

import pathlib
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time

import dlock
import redis
from dlock import fencing

LEASE_S = 1


def work(url, path, amount, is_fenced):
    """Holds the lock, reads the total, and after a line of input writes it with `amount` added."""
    lock = dlock.Lock(redis.Redis.from_url(url), "invoice:42", timeout=LEASE_S)
    lock.acquire()
    database = sqlite3.connect(path, isolation_level=None, timeout=60)

    def begin():
        database.execute("BEGIN IMMEDIATE")
        if is_fenced:
            fencing.pass_gate(database.cursor(), "invoice:42", lock.fence)

    begin()
    [(total,)] = database.execute("SELECT total FROM invoice")
    database.execute("COMMIT")
    print(f"holds the lock with the fence {lock.fence}, and reads {total}", flush=True)
    sys.stdin.readline()
    try:
        begin()
        database.execute("UPDATE invoice SET total = ?", (total + amount,))
        database.execute("COMMIT")
        print(f"writes {total + amount}", flush=True)
    except sqlite3.IntegrityError as error:
        print(f"is refused: {error}", flush=True)


class Worker:
    """A process that runs `work`. Its lines of output are printed with its name and the time."""

    def __init__(self, name, *arguments):
        self.name = name
        command = [sys.executable, __file__, "worker", *map(str, arguments)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1)

    def say(self, text):
        print(f"  {time.monotonic() - BEGAN:4.1f} s  {self.name} {text}", flush=True)

    def print_next_line(self):
        line = self.process.stdout.readline().strip()
        self.say(line or "has ended")
        return line

    def write(self):
        """Lets the worker write, and returns its output."""
        self.process.stdin.write("\n")
        return self.print_next_line()


def play(url, folder, is_fenced):
    path = pathlib.Path(folder) / f"shop-{is_fenced}.db"
    database = sqlite3.connect(path)
    database.executescript((pathlib.Path(__file__).parent / "sqlite.sql").read_text())
    database.executescript("CREATE TABLE invoice (total INTEGER NOT NULL); INSERT INTO invoice VALUES (100);")
    print(f"\n{'With' if is_fenced else 'Without'} a fence: worker-1 adds 10, worker-2 adds 20.")
    first = Worker("worker-1", url, path, 10, int(is_fenced))
    workers = [first]
    try:
        first.print_next_line()
        first.process.send_signal(signal.SIGSTOP)
        first.say(f"is stopped, for longer than its lease of {LEASE_S} s")
        second = Worker("worker-2", url, path, 20, int(is_fenced))
        workers.append(second)
        second.print_next_line()
        answers = [second.write()]
        first.process.send_signal(signal.SIGCONT)
        first.say("continues, and does not know that its lease has ended")
        answers.append(first.write())
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.communicate()
    [(total,)] = database.execute("SELECT total FROM invoice")
    database.close()
    if answers == ["writes 120", "writes 110"] and total == 110:
        print(f"  The total is {total}: both report a success, and worker-2's 20 are lost.")
    elif answers[0] == "writes 120" and answers[1].startswith("is refused") and total == 120:
        print(f"  The total is {total}: worker-2's write stands, and worker-1 knows that its own failed.")
    else:
        sys.exit(f"Unexpected: the total is {total}, and the workers printed {answers}")


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        url, path, amount, is_fenced = sys.argv[2:]
        work(url, path, int(amount), is_fenced == "1")
    else:
        BEGAN = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            play(sys.argv[1], folder, False)
            play(sys.argv[1], folder, True)
