"""The fixtures for programs of users run a server."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
from conftest import MODULE, SERVERS

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


def test_an_error_says_what_is_missing(monkeypatch):
    monkeypatch.delenv("DLOCK_MODULE", raising=False)
    with pytest.raises(RuntimeError, match="DLOCK_MODULE"):
        Server(program=next(iter(SERVERS.values())))
    with pytest.raises(RuntimeError, match="has not started"):
        Server(program=next(iter(SERVERS.values())), module="/nowhere")
