#!/usr/bin/env python3
"""Counts what 100, 1,000 and 10,000 holds and waits cost in each client (in Rust 50,000, too):
clients.py [--quick] [--only WORD,..] SERVER MODULE RUST_PROGRAM [GO_PROGRAM]

The processor time of a client is that of its process (getrusage); commands are those of INFO commandstats,
without this program's own. Neither depends on the load of the machine, but the round trips of a handoff do.
Prints a table in Markdown for each row.

Each client is a program that is called with the address of its server, or with five separated by commas for a
quorum. It reads commands from stdin, one a line, and answers each with one line of JSON, with the processor
time since the last answer in `cpu_s`:

- `start N`: acquires key:0 to key:N-1 at the same moment, and answers at once.
- `wait`: waits until each of them is acquired or has failed; `failed` is their number, `why` one of the errors.
- `pause S`: waits S seconds; `lost` is the number of holds that were lost.
- `release`: releases all holds at the same moment; `failed` is the number of releases that raised.
- `contend N S`: N contenders of one lock, released at once, for S seconds; `grants` is the number of grants.
"""

import argparse
import asyncio
import json
import pathlib
import random
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import redis

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parent.parent.parent
COUNTS = [100, 1000, 10000]
PYTHON = [str(TOP / "target/python/bin/python"), str(HERE / "python.py")]
NODE = ["node", str(TOP / "target/peers/node/clients.mjs")]
HOLDER = "kJ3xTq9Zb2VdR7wLm0sNfYhUaE4"
# Ends the wait for a client that does not get on.
LIMIT_S = 120
# How far away the servers are in the rows of handoffs.
ONE_WAY_S = 0.02


class Servers:
    def __init__(self, program, module, number):
        self.folder = tempfile.TemporaryDirectory()
        self.processes, self.clients, ports = [], [], []
        for _ in range(number):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                ports.append(free.getsockname()[1])
            options = [
                "--port",
                str(ports[-1]),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--dir",
                self.folder.name,
            ]
            options += ["--logfile", f"log-{ports[-1]}", "--maxclients", "30000", "--loadmodule", module]
            self.processes.append(subprocess.Popen([program, *options]))
            client = redis.Redis(port=ports[-1], socket_timeout=LIMIT_S)
            self.clients.append(client)
            self.until(lambda client=client: answers(client), "a server starts")
        self.ports = ports

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()
        self.folder.cleanup()

    def move_away(self):
        """From now on, each byte to and from the `ports` takes ONE_WAY_S."""
        loop = asyncio.new_event_loop()
        self.ports = [loop.run_until_complete(distant(port)) for port in self.ports]
        threading.Thread(target=loop.run_forever, daemon=True).start()

    def until(self, condition, what):
        """Returns whether the condition came true within the limit."""
        end = time.monotonic() + LIMIT_S
        while not condition():
            if time.monotonic() > end:
                print(f"!! not within {LIMIT_S} s: {what}", file=sys.stderr, flush=True)
                return False
            time.sleep(0.05)
        return True

    def take(self, count):
        """Locks key:0 to key:N-1 on each server."""
        self.batch(["DLOCK.ACQUIRE", f"key:{number}", HOLDER, "MAX"] for number in range(count))

    def give(self, count):
        self.batch(["DLOCK.RELEASE", f"key:{number}", HOLDER] for number in range(count))

    def batch(self, commands):
        commands = list(commands)
        for client in self.clients:
            pipeline = client.pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            pipeline.execute()

    def queued(self):
        return max(int(client.info("dlock")["dlock_queued"]) for client in self.clients)

    def left(self):
        """Returns how many locks are left, once a quorum has had the time for its members outside the majority."""
        end = time.monotonic() + 5
        while (locks := max(client.dbsize() for client in self.clients)) and time.monotonic() < end:
            time.sleep(0.05)
        return locks

    def calls(self):
        """Returns how many commands the clients under test have sent: all but those of this program."""
        own = ("info", "dbsize", "client|kill")
        return sum(
            stats["calls"]
            for client in self.clients
            for name, stats in client.info("commandstats").items()
            if name.removeprefix("cmdstat_") not in own
        )


def answers(client):
    try:
        return client.ping()
    except redis.exceptions.ConnectionError:
        return False


async def distant(port):
    """Returns another port from which each byte takes ONE_WAY_S to this one, and back."""
    loop = asyncio.get_running_loop()

    async def forward(reader, writer):
        while data := await reader.read(65536):
            loop.call_later(ONE_WAY_S, writer.write, data)
        loop.call_later(ONE_WAY_S, writer.close)

    async def connect(reader, writer):
        onward = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(forward(reader, onward[1]), forward(onward[0], writer), return_exceptions=True)

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    return server.sockets[0].getsockname()[1]


class Client:
    def __init__(self, command, servers):
        addresses = ",".join(f"127.0.0.1:{port}" for port in servers.ports)
        self.process = subprocess.Popen(
            [*command, addresses], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def send(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise EOFError("the client has ended")
        return json.loads(line)

    def __call__(self, command):
        self.send(command)
        return self.answer()

    def stop(self):
        self.process.kill()
        self.process.wait()


def row_holds(client, servers, count, seconds):
    """renewed holds of 30 s: CPU a minute; lost; releases together that raise; locks left"""
    client(f"start {count}")
    failed = client("wait")["failed"]
    period = client(f"pause {seconds}")
    released = client("release")
    note = f" ({failed} not acquired)" if failed else ""
    cpu = period["cpu_s"] * 60 / seconds
    return f"{cpu:.1f} s; {period['lost']}; {released['failed']}; {servers.left()}{note}"


def row_waits(client, servers, count, seconds, first=0):
    """waits: CPU a minute; commands a wait and minute. Granted together: failed; commands; locks left"""
    servers.take(count)
    client(f"start {count}")
    servers.until(lambda: servers.queued() == count, f"{count} queued")
    queued = servers.queued()
    client(f"pause {first}")
    before = servers.calls()
    period = client(f"pause {seconds}")
    asked = (servers.calls() - before) * 60 / seconds / count
    before = servers.calls()
    servers.give(count)
    failed = client("wait")["failed"]
    raised = client("release")["failed"]
    commands = (servers.calls() - before - count * len(servers.clients)) / count
    note = f" ({queued} queued)" if queued != count else ""
    cpu = period["cpu_s"] * 60 / seconds
    return f"{cpu:.1f} s; {asked:.0f}; {failed + raised}; {commands:.2f}; {servers.left()}{note}"


def row_broken(client, servers, count, _seconds):
    """waits whose subscription breaks: failed; locks left"""
    servers.take(count)
    client(f"start {count}")
    servers.until(lambda: servers.queued() == count, f"{count} queued")
    for server in servers.clients:
        server.client_kill_filter(_type="pubsub")
    client("pause 1")
    servers.give(count)
    failed = client("wait")["failed"]
    raised = client("release")["failed"]
    return f"{failed + raised}; {servers.left()}"


def row_contend(client, servers, count, seconds):
    """contenders of one lock: commands a grant; CPU of the client a grant"""
    client("pause 0")
    before = servers.calls()
    found = client(f"contend {count} {min(seconds, 10)}")
    grants = max(found["grants"], 1)
    return f"{(servers.calls() - before) / grants:.2f}; {found['cpu_s'] * 1e6 / grants:.0f} µs"


def row_together(client, servers, count, _seconds):
    """free locks of a quorum of five acquired, then released together: failed; raised; CPU; locks left"""
    client("pause 0")
    client(f"start {count}")
    acquired = client("wait")
    released = client("release")
    cpu = acquired["cpu_s"] + released["cpu_s"]
    return f"{acquired['failed']}; {released['failed']}; {cpu:.1f} s; {servers.left()}"


def row_quorum_waits(client, servers, count, seconds):
    """waits in a quorum of five, after their first minute: CPU a minute; commands a wait and minute. Granted together: failed; commands; locks left"""
    return row_waits(client, servers, count, 3 * seconds, first=3 * seconds)


def row_handoff(client, servers, count, _seconds):
    """handoffs through 20 ms each way: round trips from the RELEASE to the grant, median (least, most); failed"""
    holders = [redis.Connection(port=port) for port in servers.ports]
    for holder in holders:
        holder.connect()
    found, failed = [], 0
    for _ in range(count):
        servers.take(1)
        client("start 1")
        servers.until(lambda: servers.queued() == 1, "a wait is queued")
        # Clients check the queue of a quorum at fixed times after the start of a wait.
        time.sleep(random.uniform(0.5, 2))
        client.send("wait")
        released_at = time.monotonic()
        for holder in holders:
            holder.send_command("DLOCK.RELEASE", "key:0", HOLDER)
        failed += client.answer()["failed"]
        found.append((time.monotonic() - released_at) / (2 * ONE_WAY_S))
        for holder in holders:
            holder.read_response()
        failed += client("release")["failed"]
        servers.left()
    return f"{statistics.median(found):.2f} ({min(found):.2f}, {max(found):.2f}); {failed}"


def row_quorum_handoff(client, servers, count, seconds):
    """the same over a quorum of five"""
    return row_handoff(client, servers, count, seconds)


ROWS = [
    (row_holds, 1, [*COUNTS, 50000]),
    (row_waits, 1, [*COUNTS, 50000]),
    (row_broken, 1, COUNTS),
    (row_contend, 1, COUNTS),
    (row_together, 5, COUNTS),
    (row_quorum_waits, 5, COUNTS[:2]),
    (row_handoff, 1, [20]),
    (row_quorum_handoff, 5, [20]),
]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="100 and 1,000 only, for 5 s in place of 20")
    parser.add_argument("--only", default="", help="rows and clients whose names contain one of these words")
    parser.add_argument("server")
    parser.add_argument("module")
    parser.add_argument("rust")
    parser.add_argument("go", nargs="?")
    options = parser.parse_args()
    seconds = 5 if options.quick else 20
    words = options.only.lower().split(",")
    # The most waits at a time: each wait of threads is a thread. Holds are 10,000 in each.
    clients = {
        "Rust": ([options.rust], 50000),
        "Python threads": ([*PYTHON, "threads"], 1000),
        "Python asyncio": ([*PYTHON, "asyncio"], 10000),
        "Node": (NODE, 10000),
    }
    if options.go:
        clients["Go"] = ([options.go], 10000)

    def chosen(names):
        found = [name for name in names if any(word in name.lower() for word in words)]
        return found or list(names)

    named = {row[0].__name__.removeprefix("row_"): row for row in ROWS}
    # Each client and connection of the largest row is a file.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    names = chosen(clients)
    for row, number, counts in (named[name] for name in chosen(named)):
        print(f"\n| {row.__doc__} | " + " | ".join(names) + " |\n|---|" + "---|" * len(names), flush=True)
        for count in [count for count in counts if not options.quick or count <= 1000]:
            cells = []
            for name in names:
                command, most = clients[name]
                if row is row_holds:
                    most = max(most, 10000)
                # The Go client has no quorum.
                if count > most or number > 1 and name == "Go":
                    cells.append("")
                    continue
                servers = Servers(options.server, options.module, number)
                if row in (row_handoff, row_quorum_handoff):
                    servers.move_away()
                client = Client(command, servers)
                try:
                    cells.append(row(client, servers, count, seconds))
                except (EOFError, redis.exceptions.RedisError) as why:
                    cells.append(f"ended: {why}")
                finally:
                    client.stop()
                    servers.stop()
                print(f"{name}, {count}: {cells[-1]}", file=sys.stderr, flush=True)
            print(f"| {count:,} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
