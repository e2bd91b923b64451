"""Plays the files conformance/*.json against a server, in RESP2 and RESP3, over a bare socket.
conformance/README.md explains the files."""

from __future__ import annotations

import contextlib
import json
import pathlib
import socket
import subprocess
import time

import pytest
from conftest import LIMIT, SERVERS, patient_client, protocols, remove_locks, until

FOLDER = pathlib.Path(__file__).parents[3] / "conformance"
STEP_KEYS = {"on", "send", "answer", "until", "lose", "mark", "after", "close", "why"}


class Error(str):
    """An error reply."""


class Connection:
    def __init__(self, port, protocol):
        self.socket = socket.create_connection(("127.0.0.1", port), LIMIT)
        self.file = self.socket.makefile("rb")
        if protocol == 3:
            self.send(["HELLO", "3"])
            assert isinstance(self.read(), dict)

    def send(self, arguments):
        parts = [b"*%d\r\n" % len(arguments)]
        for argument in (text.encode() for text in arguments):
            parts.append(b"$%d\r\n%s\r\n" % (len(argument), argument))
        self.socket.sendall(b"".join(parts))

    def read(self):
        line = self.file.readline()
        kind, rest = line[:1], line[1:-2].decode()
        if kind == b"-":
            return Error(rest)
        if kind == b"+":
            return rest
        if kind == b"_" or (kind in b"$*" and rest == "-1"):
            return None
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return self.file.read(int(rest) + 2)[:-2].decode()
        if kind in b"*>~":
            return [self.read() for _ in range(int(rest))]
        assert kind == b"%", line
        return {self.read(): self.read() for _ in range(int(rest))}

    def close(self):
        self.file.close()
        self.socket.close()


class Playing:
    """Plays the steps of one file."""

    def __init__(self, port, protocol):
        self.port, self.protocol = port, protocol
        self.connections, self.names, self.marks = {}, {}, {}
        self.greatest_fence = 0

    def connect(self):
        return Connection(self.port, self.protocol)

    def step(self, step):
        assert step.keys() <= STEP_KEYS, step
        on = step.get("on", "a")
        if on not in self.connections:
            self.connections[on] = self.connect()
        connection = self.connections[on]
        if "mark" in step:
            self.marks[step["mark"]] = time.monotonic()
        if "send" in step:
            words = step["send"].split(" ") if isinstance(step["send"], str) else step["send"]
            command = [self.filled(word) for word in words]
            connection.send(command)
        if "lose" in step:
            connection.read()
            self.connections.pop(on).close()
        if "answer" in step:
            found = connection.read()
            assert self.fits(step["answer"], found), f"{step}: found {found!r}"
        if "until" in step:

            def answer_fits():
                if self.fits(step["until"], connection.read()):
                    return True
                connection.send(command)
                return False

            until(step, answer_fits)
        for mark, least_ms in step.get("after", {}).items():
            assert time.monotonic() - self.marks[mark] >= least_ms / 1000, f"{step}: too early"
        if step.get("close"):
            self.connections.pop(on).close()

    def filled(self, text):
        """Returns the text with the saved values in place of their names."""
        for name, value in self.names.items():
            text = text.replace("{" + name + "}", str(value))
        return text

    def fits(self, wanted, found):
        if isinstance(wanted, dict):
            return all(self.fits_pattern(pattern, rest, found) for pattern, rest in wanted.items())
        if isinstance(wanted, list):
            same_length = isinstance(found, list) and len(wanted) == len(found)
            return same_length and all(self.fits(*pair) for pair in zip(wanted, found))
        if isinstance(wanted, str):
            return not isinstance(found, Error) and found == self.filled(wanted)
        return type(wanted) is type(found) and wanted == found

    def fits_pattern(self, pattern, wanted, found):
        if pattern == "any":
            return True
        if pattern == "error":
            return isinstance(found, Error) and found.split(" ")[0] == wanted
        if pattern in ("least", "most"):
            return type(found) is int and (found >= wanted if pattern == "least" else found <= wanted)
        if pattern == "length":
            return isinstance(found, str) and len(found) == wanted
        if pattern == "save":
            self.names[wanted] = found
            return type(found) in (int, str)
        if pattern == "fence":
            if wanted in self.names:
                return found == self.names[wanted]
            is_greater = type(found) is int and found > self.greatest_fence
            self.greatest_fence = self.names[wanted] = found
            return is_greater
        assert pattern == "map", f"unknown pattern: {pattern}"
        if self.protocol == 2 and isinstance(found, list):
            found = dict(zip(found[::2], found[1::2]))
        elif self.protocol == 2 or not isinstance(found, dict):
            return False
        return all(self.fits(rest, found[name]) for name, rest in wanted.items())


@contextlib.contextmanager
def options(server, scenario):
    """Sets the options of a scenario, and restores the earlier values afterwards."""
    chosen = scenario.get("options", {})
    with patient_client(server, decode_responses=True) as r:
        before = {name: r.config_get(name)[name] for name in chosen}
        for name, value in chosen.items():
            r.config_set(name, value)
        try:
            yield
        finally:
            remove_locks(r)
            for name, value in before.items():
                r.config_set(name, value)


@pytest.mark.parametrize("shared_server, protocol", protocols(), indirect=["shared_server"])
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_the_server_keeps_the_contract(server, path, protocol):
    scenario = json.loads(path.read_text())
    if protocol not in scenario.get("protocols", [2, 3]):
        pytest.skip("only for the other protocol")
    playing = Playing(server.port, protocol)
    with options(server, scenario):
        try:
            for step in scenario["steps"]:
                playing.step(step)
        finally:
            for connection in playing.connections.values():
                connection.close()


@pytest.mark.parametrize("shared_server", sorted(SERVERS)[:1], indirect=True)
def test_the_runner_for_node_plays_every_file(server):
    command = ["node", FOLDER / "play.js", str(server.port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    # For each file, the runner prints "kept: " and the promise.
    assert done.stdout.count("kept: ") == len(list(FOLDER.glob("*.json")))


@pytest.mark.parametrize("shared_server", sorted(SERVERS)[:1], indirect=True)
def test_the_runner_for_node_names_the_step_that_fails(server, tmp_path):
    wrong = tmp_path / "wrong.json"
    steps = [
        {"send": "DLOCK.ACQUIRE lock one 60000", "answer": {"fence": "f"}},
        {"send": "PING", "answer": 1},
    ]
    wrong.write_text(json.dumps({"promise": "", "steps": steps}))
    command = ["node", FOLDER / "play.js", str(server.port), wrong]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "step 2" in done.stderr and 'found "PONG"' in done.stderr
