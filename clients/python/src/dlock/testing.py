"""Servers for the tests of your program. With pytest:

    pytest_plugins = ["dlock.testing"]  # in conftest.py

    def test_my_program(dlock_url):
        client = redis.Redis.from_url(dlock_url)

The environment variable DLOCK_MODULE has the path of the module, and DLOCK_SERVER that of the server program;
by default, the valkey-server or redis-server in the PATH."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator

import redis

from ._arguments import public

# Longest time in seconds until a server answers.
START_LIMIT = 30
# Tries to start a server: another process may take the free port meanwhile.
TRIES = 5
# The script of the watcher. It reads the process ids of a server until the process of the tests has ended,
# killed by a signal for example. Then it kills the last one, and removes the folder.
WATCHER = 'while read -r next; do last=$next; done; kill -9 $last; rm -rf "$0"'


class Server:
    """A server with the module, on a free port of 127.0.0.1, which stores nothing on a disk. Use it in a
    ``with``. It ends with this process at the latest, even if a signal kills this process."""

    def __init__(self, *options: str, program: str | None = None, module: str | None = None) -> None:
        """Starts the server. ``options``: further arguments of the server, such as "--appendonly", "yes".
        Raises `RuntimeError` if it does not start."""
        self._program = program or os.environ.get("DLOCK_SERVER") or _program()
        self._module = module or os.environ.get("DLOCK_MODULE") or ""
        if not self._module:
            raise RuntimeError("set DLOCK_MODULE to the path of the module (libdlock.so)")
        # The server has another working directory.
        self._module = os.path.abspath(self._module)
        self._options = options
        self._folder = tempfile.mkdtemp(prefix="dlock-testing-")
        # In a session of its own, as the signals of a terminal must not end it.
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", WATCHER, self._folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def clear(self) -> None:
        """Removes all keys, and all waiters of database 0."""
        with redis.Redis.from_url(self.url) as client:
            end = time.monotonic() + START_LIMIT
            # After FLUSHALL, the server grants each lock to its first waiter.
            while client.flushall() and client.execute_command("DLOCK.LIST", 0)[1]:
                if time.monotonic() > end:
                    raise RuntimeError("clients of the server still wait for locks")

    def stop(self) -> None:
        """Ends the server, and removes its folder."""
        process = getattr(self, "process", None)
        if process is not None:
            process.kill()
            process.wait()
        self._watcher.kill()
        self._watcher.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> None:
        for _ in range(TRIES):
            with socket.create_server(("127.0.0.1", 0)) as listener:
                self.port = listener.getsockname()[1]
            self.url = f"redis://127.0.0.1:{self.port}"
            words = "--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--dir", self._folder
            path = pathlib.Path(self._folder) / "log"
            with path.open("wb") as log:
                self.process = subprocess.Popen(
                    [self._program, *words, "--loadmodule", self._module, *self._options],
                    stdout=log,
                    stderr=log,
                )
            assert self._watcher.stdin is not None
            self._watcher.stdin.write(f"{self.process.pid}\n".encode())
            self._watcher.stdin.flush()
            if self._answers():
                return
            text = path.read_text(errors="replace")
            if "already in use" not in text:
                break
        raise RuntimeError(f"the server has not started: {text[-2000:]}")

    def _answers(self) -> bool:
        """Waits until the server answers. Returns False if its process ends."""
        end = time.monotonic() + START_LIMIT
        while self.process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(redis.RedisError), redis.Redis.from_url(self.url) as client:
                return bool(client.ping())
            time.sleep(0.01)
        return False


public("dlock.testing", Server)


def _program() -> str:
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise RuntimeError("no valkey-server or redis-server in the PATH: set DLOCK_SERVER")
    return found


with contextlib.suppress(ImportError):
    import pytest

    @pytest.fixture(scope="session")
    def dlock_server() -> Iterator[Server]:
        """A `Server` for all tests."""
        with Server() as server:
            yield server

    @pytest.fixture
    def dlock_url(dlock_server: Server) -> str:
        """The address of a server without keys."""
        dlock_server.clear()
        return dlock_server.url
