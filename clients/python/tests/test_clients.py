"""The clients that a lock accepts, and the names of its connections."""

from __future__ import annotations

import asyncio
import hashlib
import pathlib
import pickle
import subprocess
import sys

import pytest
import redis
import redis.asyncio
import valkey
from conftest import client_class, until, until_renewed_twice
from redis.exceptions import InvalidResponse

import dlock
import dlock.asyncio
from dlock._clients import translated
from dlock._protocol import send


def sync_client():
    return client_class("redis").from_url("redis://localhost:1")


def async_client():
    return client_class("redis", is_async=True).from_url("redis://localhost:1")


def make_operator(client, name, timeout):
    dlock.Operator(client)


def make_async_operator(client, name, timeout):
    dlock.asyncio.Operator(client)


WRONG_CLIENTS = [
    (dlock.Lock, async_client, "use dlock.asyncio"),
    (dlock.Lock, lambda: sync_client().pipeline(), "pass the client"),
    (dlock.Lock, lambda: async_client().pipeline(), "pass the client"),
    (dlock.Lock, lambda: None, "got None"),
    (dlock.Lock, lambda: "redis://localhost", "from_url"),
    (dlock.Lock, object, "got builtins.object"),
    (dlock.Lock, lambda: redis.Redis, "the class Redis"),
    (dlock.Lock, lambda: dlock.Quorum([sync_client()]), "got dlock.Quorum: use Redlock with it$"),
    (
        make_operator,
        lambda: dlock.Quorum([sync_client()]),
        "got dlock.Quorum: pass the client of one of its members$",
    ),
    (dlock.asyncio.Lock, sync_client, "use dlock with it, and not dlock.asyncio$"),
    (make_async_operator, sync_client, "use dlock with it, and not dlock.asyncio$"),
    (dlock.asyncio.Lock, lambda: async_client().pipeline(), "pass the client"),
    (dlock.asyncio.Lock, lambda: sync_client().pipeline(), "pass the client"),
    (dlock.asyncio.Lock, lambda: None, "got None"),
    (dlock.asyncio.Lock, lambda: "redis://localhost", "asyncio.Redis.from_url"),
    (dlock.Redlock, sync_client, "dlock.Quorum"),
    (dlock.Redlock, lambda: dlock.Quorum([async_client()]), "use dlock.asyncio"),
    (
        dlock.asyncio.Redlock,
        lambda: dlock.Quorum([sync_client()]),
        "use dlock with it, and not dlock.asyncio",
    ),
    (dlock.asyncio.Redlock, lambda: None, "dlock.Quorum"),
]


@pytest.mark.parametrize("lock_class, make, text", WRONG_CLIENTS)
def test_a_lock_refuses_a_client_of_the_wrong_kind(lock_class, make, text):
    with pytest.raises(TypeError, match=text):
        lock_class(make(), "foo", timeout=10)


def test_a_lock_accepts_a_client_of_an_application_class_named_pipeline():
    pipeline = type("Pipeline", (redis.Redis,), {"__module__": "app"})
    dlock.Lock(pipeline(), "foo", timeout=10)


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: [sync_client(), async_client()], "use dlock.asyncio"),
        (lambda: [async_client(), sync_client()], "use dlock with it, and not dlock.asyncio"),
        (lambda: ["redis://localhost"], "from_url"),
        (lambda: [sync_client(), None], "got None"),
        (lambda: [sync_client().pipeline()], "pass the client"),
        (sync_client, "needs a list of clients, and got Redis"),
        (lambda: None, "needs a list of clients, and got None"),
    ],
)
def test_a_quorum_refuses_a_client_of_the_wrong_kind(make, text):
    with pytest.raises(TypeError, match=text):
        dlock.Quorum(make())


def test_a_quorum_refuses_a_cluster_client():
    class Cluster(redis.RedisCluster):
        """A cluster client that connects to no server."""

        def __init__(self):
            pass

        def __del__(self):
            pass

    with pytest.raises(TypeError, match="one server"):
        dlock.Quorum([Cluster()])


def test_the_errors_have_the_names_that_users_import():
    for name in ["Quorum", *(each for each in dlock.__all__ if each.endswith("Error"))]:
        found = getattr(dlock, name)
        if found not in (dlock.LockError, dlock.LockNotOwnedError):  # of redis-py
            assert f"{found.__module__}.{found.__qualname__}" == f"dlock.{name}"
            assert pickle.loads(pickle.dumps(found)) is found
    assert [kind for kind in dlock.LockError.__subclasses__() if kind.__module__.startswith("dlock.")] == []


class CannedClient(redis.Redis):
    """A client of a user's own class that returns ``answer`` for every command, without a server."""

    answer = None

    def execute_command(self, *args, **options):
        return self.answer


class CannedAsyncClient(redis.asyncio.Redis):
    answer = None

    async def execute_command(self, *args, **options):
        return self.answer


def test_an_unknown_command_is_an_error_that_says_to_load_the_module():
    # `send` yields the command, and its caller sends it. Here the test is the caller.
    steps = send(("DLOCK.PTTL", "foo"))
    next(steps)
    with pytest.raises(redis.ResponseError, match="load the module dlock"):
        steps.throw(redis.ResponseError("unknown command 'DLOCK.PTTL', with args beginning with: 'foo' "))


@pytest.mark.parametrize("answer", [0, -5, 2**53, 2**63 - 1])
def test_an_answer_that_is_no_fence_is_no_grant(answer):
    client = CannedClient()
    client.answer = answer
    lock = dlock.Lock(client, "foo", timeout=10)
    with pytest.raises(InvalidResponse, match="no fence"):
        lock.acquire(blocking=False)
    assert lock.fence is None and not lock.owned()
    steps = send(("DLOCK.CONFIRM", "foo", "token", 1, 1000))
    next(steps)
    with pytest.raises(InvalidResponse, match="no fence"):
        steps.send(answer)


@pytest.mark.parametrize("answer", ["QUEUED", True, 1.5, object()], ids=["text", "bool", "float", "object"])
def test_a_reply_other_than_an_integer_or_null_is_an_error(answer):
    client = CannedClient()
    client.answer = answer
    lock = dlock.Lock(client, "foo", timeout=10)
    for call in lock.locked, lambda: lock.acquire(blocking=False):
        with pytest.raises(InvalidResponse):
            call()
    assert lock.fence is None

    async def main():
        client = CannedAsyncClient()
        client.answer = answer
        with pytest.raises(InvalidResponse):
            await dlock.asyncio.Lock(client, "foo", timeout=10).acquire(blocking=False)

    asyncio.run(main())


@pytest.mark.parametrize(
    "theirs, ours",
    [
        (valkey.exceptions.NoPermissionError("NOPERM"), redis.exceptions.NoPermissionError),
        (valkey.exceptions.MovedError("7 host:1"), redis.exceptions.MovedError),
        (valkey.exceptions.ValkeyClusterException("lost"), redis.exceptions.RedisClusterException),
        (type("Own", (valkey.exceptions.TimeoutError,), {})("late"), redis.exceptions.TimeoutError),
        (OSError("no network"), OSError),
    ],
    ids=["permission", "moved", "cluster", "subclass", "other"],
)
def test_an_error_of_valkey_py_becomes_the_error_of_redis_py(theirs, ours):
    made = translated(theirs)
    assert type(made) is ours
    assert str(made) == str(theirs) and repr(made)
    assert vars(made).keys() >= vars(theirs).keys()  # such as the host of a MovedError


PROGRAM = """
import redis
import redis.asyncio
import dlock
import dlock.asyncio

sync, cluster = redis.Redis(), redis.RedisCluster()
async_client, async_cluster = redis.asyncio.Redis(), redis.asyncio.RedisCluster()

dlock.Lock(sync, "a")
dlock.Lock(cluster, "a")
dlock.asyncio.Lock(async_client, "a")
dlock.asyncio.Lock(async_cluster, "a")
dlock.Redlock(dlock.Quorum([sync, sync]), "a", timeout=1, fenced=True)
dlock.asyncio.Redlock(dlock.Quorum([async_client]), "a")

dlock.Lock(async_client, "a")  # error
dlock.Lock(None, "a")  # error
dlock.Lock("redis://localhost", "a")  # error
dlock.asyncio.Lock(sync, "a")  # error
dlock.asyncio.Lock(None, "a")  # error
dlock.Redlock(sync, "a")  # error
dlock.Redlock(dlock.Quorum([async_client]), "a")  # error
dlock.asyncio.Redlock(dlock.Quorum([sync]), "a")  # error
"""


@pytest.mark.skipif(
    not (pathlib.Path(redis.__file__).parent / "py.typed").exists()
    or int(redis.__version__.split(".")[0]) < 8,
    reason="needs the types of redis-py 8 or later",
)
def test_mypy_reports_a_client_of_the_wrong_kind(tmp_path):
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=pathlib.Path(__file__).parents[1])
    found = sorted({int(line.split(":")[1]) for line in done.stdout.splitlines() if "error:" in line})
    expected = [n for n, line in enumerate(PROGRAM.split("\n"), 1) if line.endswith("# error")]
    assert found == expected, done.stdout + done.stderr


def library_names(client):
    return {each.get("lib-name") for each in client.client_list()}


def knows_library_names(client):
    return "lib-name" in client.client_list()[0]


def test_the_background_connection_to_a_single_server_has_the_library_name(r, get_lock):
    if not knows_library_names(r):
        pytest.skip("needs Redis 7.2 or Valkey 8")
    # Connections of earlier tests have the name, too.
    for client in r.client_list():
        if client["lib-name"] == "dlock-client":
            r.client_kill_filter(_id=client["id"])
    with get_lock(timeout=60, auto_renew=True) as lock:
        until_renewed_twice(r, lock)
        assert "dlock-client" in library_names(r)


def test_the_library_name_of_a_quorum_contains_a_digest_of_its_members(members):
    # A majority grants the lock, but the digest needs an answer of every member.
    with members.lock(timeout=30):
        members.until_held()
    run_ids = sorted(client.info("server")["run_id"] for client in members.direct)
    digest = hashlib.sha1(",".join(run_ids).encode()).hexdigest()[:8]
    expected = f"dlock-client(q3-{digest})"
    assert members.quorum.library_name() == expected
    for client in members.direct:
        if knows_library_names(client):
            until("the connection is named", lambda client=client: expected in library_names(client))


def test_the_library_name_of_a_quorum_has_no_digest_until_all_members_are_known():
    quorum = dlock.Quorum([sync_client() for _ in range(3)])
    assert quorum.library_name() == "dlock-client(q3)"
    assert dlock.Quorum([sync_client()]).library_name() == "dlock-client"
