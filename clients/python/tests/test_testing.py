"""The fixtures for programs of users run a server."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest
from conftest import MODULE, SERVERS, until

from dlock.testing import Server

TESTS = """
import dlock
import redis

pytest_plugins = ["dlock.testing"]


def test_a_lock(dlock_url):
    with redis.Redis.from_url(dlock_url) as client:
        dlock.Lock(client, "foo").acquire()


def test_a_server_without_keys(dlock_url):
    with redis.Redis.from_url(dlock_url) as client:
        assert dlock.Lock(client, "foo").acquire(blocking=False)
"""


@pytest.mark.parametrize("server", sorted(SERVERS))
def test_the_fixtures_start_a_server(tmp_path, server):
    (tmp_path / "test_program.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "."],
        cwd=tmp_path,
        env={**os.environ, "DLOCK_SERVER": SERVERS[server], "DLOCK_MODULE": MODULE},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_a_stopped_server_leaves_nothing():
    with Server(program=next(iter(SERVERS.values())), module=MODULE) as server:
        folder = pathlib.Path(server._folder)
        assert folder.exists() and server.process.poll() is None
    assert not folder.exists() and server.process.poll() is not None


PROGRAM = """
import sys
from dlock.testing import Server

server = Server()
print(server.port, server._folder, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_is_killed_leaves_nothing(number):
    def refuses(port):
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) != 0

    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "DLOCK_SERVER": next(iter(SERVERS.values())), "DLOCK_MODULE": MODULE},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        port, folder = process.stdout.readline().split()
        process.send_signal(number)
        until("the server has ended", lambda: refuses(int(port)))
        until("the folder is gone", lambda: not os.path.exists(folder))


def test_the_path_of_the_module_may_be_relative(monkeypatch):
    monkeypatch.chdir(os.path.dirname(MODULE))
    monkeypatch.setenv("DLOCK_MODULE", os.path.join(".", os.path.basename(MODULE)))
    with Server(program=next(iter(SERVERS.values()))):
        pass


def test_an_error_says_what_is_missing(monkeypatch):
    monkeypatch.delenv("DLOCK_MODULE", raising=False)
    with pytest.raises(RuntimeError, match="DLOCK_MODULE"):
        Server(program=next(iter(SERVERS.values())))
    with pytest.raises(RuntimeError, match="has not started"):
        Server(program=next(iter(SERVERS.values())), module="/nowhere")
