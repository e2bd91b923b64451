"""Runs the programs of the folder `recipes`, and tests the helpers for SQLAlchemy and Django."""

from __future__ import annotations

import contextlib
import importlib.util
import pathlib
import re
import sqlite3
import subprocess
import sys
import threading

import pytest
from conftest import until

import dlock
from dlock import fencing

RECIPES = pathlib.Path(__file__).parents[1] / "recipes"
FENCING = pathlib.Path(__file__).parents[3] / "contrib/fencing"


@pytest.fixture
def recipe(server, monkeypatch):
    """Returns a function that imports a recipe, which then locks on this server."""
    monkeypatch.setenv("LOCKS", server.url)

    def load(name):
        spec = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load


def test_the_django_recipe_locks_with_dlock(recipe, server, r):
    pytest.importorskip("django_redis")
    from django.conf import settings
    from django.core.cache import caches

    recipe("django_locks")
    options = {"REDIS_CLIENT_CLASS": "django_locks.Redis"}
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url, "OPTIONS": options}
    if not settings.configured:
        settings.configure()
    settings.CACHES = {"default": cache}
    caches.settings = caches.configure_settings(None)
    cache = caches.create_connection("default")
    with cache.lock("report", timeout=60) as lock:
        assert isinstance(lock, dlock.Lock)
        # Django adds its empty key prefix and its key version 1 to the name.
        assert r.execute_command("DLOCK.HOLDS", ":1:report", lock.local.token) == 1
        assert not cache.lock("report", timeout=60, blocking=False).acquire()
    cache.set("value", 1)
    assert cache.get("value") == 1


@pytest.fixture
def once(recipe):
    celery = pytest.importorskip("celery")
    module = recipe("celery_once")
    app = celery.Celery("shop", broker="memory://", backend="cache+memory://")
    app.conf.update(worker_hijack_root_logger=False, broker_transport_options={"polling_interval": 0.02})
    yield app, module
    module.client.close()


def test_the_celery_recipe_runs_a_task_once(once, r):
    from celery.contrib.testing.worker import start_worker

    app, module = once
    began, go_on, fences = threading.Event(), threading.Event(), []

    @app.task(base=module.Once, bind=True, shared=False, acks_late=True, default_retry_delay=0.2)
    def charge(self, invoice):
        fences.append(self.request.fence)
        began.set()
        go_on.wait(20)
        return f"charged {invoice}"

    with start_worker(app, pool="threads", concurrency=2, perform_ping_check=False):
        first = charge.delay("42")
        assert began.wait(20)
        second = charge.delay("42")
        until("the second task is postponed", lambda: second.state == "RETRY")
        go_on.set()
        assert first.get(timeout=20) == "charged 42"
        assert second.get(timeout=20) is None
        assert charge.delay("42").get(timeout=20) is None
        assert charge.delay("43").get(timeout=20) == "charged 43"
    assert len(fences) == 2
    assert fences[0] < fences[1]
    assert r.dbsize() == 2, "only the keys that mark the two tasks as done, and no locks"


def test_the_celery_recipe_marks_no_task_as_done_after_a_lost_lock(once, r):
    app, module = once

    @app.task(base=module.Once, bind=True, shared=False)
    def charge(self):
        r.execute_command("DLOCK.BREAK", r.keys("task:*")[0])

    with pytest.raises(Exception, match=r"NOTHELD|no longer owned"):
        charge()
    assert r.dbsize() == 0


def test_the_fastapi_recipe_answers_423_after_a_long_wait(recipe, r):
    pytest.importorskip("httpx")
    testclient = pytest.importorskip("fastapi.testclient")
    module = recipe("fastapi_locks")
    with testclient.TestClient(module.app) as web:
        found = [web.post("/items/7").json() for _ in range(2)]
        assert found[0]["fence"] < found[1]["fence"]
        r.execute_command("DLOCK.ACQUIRE", "item:7", "another", 60_000)
        assert web.post("/items/8").status_code == 200
        assert web.post("/items/7").status_code == 423
        assert r.execute_command("DLOCK.WAITERS", "item:7") == []


@pytest.fixture
def leader(server):
    processes = []

    def start():
        command = [sys.executable, RECIPES / "leader.py", server.url, "service"]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_the_leader_recipe_hands_the_lead_to_the_next_in_the_queue(leader, r):
    def expect_lead(process):
        # The term is a fence, a number of 16 digits.
        assert re.fullmatch(rf"{process.pid} leads, term \d{{16}}\n", process.stdout.readline())

    def waiters():
        return len(r.execute_command("DLOCK.WAITERS", "leader:service"))

    first = leader()
    expect_lead(first)
    second = leader()
    until("the second process waits", lambda: waiters() == 1)
    r.execute_command("DLOCK.BREAK", "leader:service")
    expect_lead(second)
    assert "leads no more" in first.stdout.readline()
    until("the first process waits", lambda: waiters() == 1)
    third = leader()
    until("the third process waits", lambda: waiters() == 2)
    third.terminate()
    assert third.wait(20) == 0
    assert waiters() == 1
    second.terminate()
    expect_lead(first)


class Held:
    """A held lock, with the attributes that the helpers of dlock.fencing read."""

    name = b"invoice:42"
    fence = 7


@pytest.fixture
def shop(tmp_path):
    """A database with a gate: a table in which each transaction first raises the fence of its lock. The
    transaction fails if the table has a higher fence."""
    path = tmp_path / "shop.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript((FENCING / "sqlite.sql").read_text())
    return path


def test_each_transaction_of_a_fenced_sqlalchemy_session_begins_at_the_gate(shop):
    sqlalchemy = pytest.importorskip("sqlalchemy")
    from sqlalchemy.orm import Session

    engine = sqlalchemy.create_engine(f"sqlite:///{shop}")
    query = sqlalchemy.text("SELECT name, fence FROM dlock_gate")
    held = Held()
    with Session(engine) as session:
        fencing.fence_session(session, held)
        for held.fence in 7, 8:
            assert session.execute(query).all() == [("invoice:42", held.fence)]
            session.commit()
        held.fence = 7
        with pytest.raises(sqlalchemy.exc.IntegrityError, match="dlock: "):
            session.execute(query)
        # The refused transaction runs no other statement, and does not commit.
        with pytest.raises(sqlalchemy.exc.PendingRollbackError):
            session.execute(query)
        with pytest.raises(sqlalchemy.exc.SQLAlchemyError):
            session.commit()
        session.rollback()
        held.fence = 9
        assert session.execute(query).all() == [("invoice:42", 9)]
        session.commit()
        # Each transaction of a session with two locks raises the fences of both.
        fencing.fence_session(session, another := Held())
        another.name, another.fence = "invoice:43", 4
        assert session.execute(query).all() == [("invoice:42", 9), ("invoice:43", 4)]
        session.commit()
        another.fence = 3
        with pytest.raises(sqlalchemy.exc.IntegrityError, match="dlock: "):
            session.execute(query)
    engine.dispose()


def test_fence_session_refuses_a_session_that_has_run_a_statement(shop):
    """The statement has begun a transaction that has not passed the gate."""
    sqlalchemy = pytest.importorskip("sqlalchemy")
    from sqlalchemy.orm import Session

    engine = sqlalchemy.create_engine(f"sqlite:///{shop}")
    with Session(engine) as session:
        session.execute(sqlalchemy.text("SELECT 1"))
        with pytest.raises(RuntimeError, match="has not passed the gate"):
            fencing.fence_session(session, Held())
    with Session(engine) as session, session.begin():
        # No statement has run, so the transaction can still pass the gate first.
        fencing.fence_session(session, Held())
        query = sqlalchemy.text("SELECT name, fence FROM dlock_gate")
        assert session.execute(query).all() == [("invoice:42", Held.fence)]
    engine.dispose()


def test_fence_session_refuses_a_factory_of_sessions():
    orm = pytest.importorskip("sqlalchemy.orm")
    for factory in orm.sessionmaker(), orm.scoped_session(orm.sessionmaker()), orm.Session:
        with pytest.raises(TypeError, match="needs a Session"):
            fencing.fence_session(factory, Held())
    fencing.fence_session(orm.scoped_session(orm.sessionmaker())(), Held())


def test_fencing_atomic_begins_a_django_transaction_at_the_gate(shop):
    pytest.importorskip("django")
    program = f"""
import django
from django.conf import settings
settings.configure(DATABASES={{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": {str(shop)!r}}}}})
django.setup()
from django.db import IntegrityError, connection, transaction
from dlock import fencing
class Held:
    name, fence = "invoice:42", 7
held = Held()
for held.fence in 7, 8:
    with fencing.atomic(held), connection.cursor() as cursor:
        cursor.execute("SELECT name, fence FROM dlock_gate")
        assert cursor.fetchall() == [("invoice:42", held.fence)]
# Django refuses to begin the durable block of fencing.atomic inside any other atomic block.
for block in transaction.atomic(), fencing.atomic(held):
    with block:
        try:
            with fencing.atomic(held):
                print("passed in a transaction that had begun before")
        except RuntimeError as error:
            print("durable" in str(error))
held.fence = 7
try:
    with fencing.atomic(held):
        print("passed")
except IntegrityError as error:
    print("refused", error)
held.fence = 9
with transaction.atomic(), connection.cursor() as cursor, fencing.carry(cursor, 9):
    cursor.execute("SELECT fence FROM dlock_carried")
    print(cursor.fetchall())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    nested, refused, carried = done.stdout.rsplit("\n", 3)[:3] if done.returncode == 0 else (0, 0, 0)
    assert (nested, carried) == ("True\nTrue", "[(9,)]"), done.stdout + done.stderr
    assert refused.startswith("refused dlock: ")


def test_the_demo_shows_both_outcomes(server):
    program = [sys.executable, FENCING / "demo.py", server.url]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    without, fenced = done.stdout.split("With a fence")
    assert "worker-1 writes 110" in without, done.stdout + done.stderr
    assert "worker-2's 20 are lost" in without
    assert "worker-1 is refused: dlock: " in fenced
    assert "worker-2's write stands" in fenced
