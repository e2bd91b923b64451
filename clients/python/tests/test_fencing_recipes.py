"""Runs the code in contrib/fencing/recipes.md as it is written there. The recipes refuse a
holder after a later holder has raised the fence."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import multiprocessing
import os
import re

import psycopg
import pytest
from conftest import until
from databases import FENCING, PostgreSQL, require_databases

from dlock import fencing


class ClientError(Exception):
    """An error of botocore."""

    def __init__(self, code):
        self.response = {"Error": {"Code": code}}


class S3:
    """A bucket with one object. The first line of its content is the fence. Its ETag is a digest of the
    content."""

    def __init__(self, body):
        self.body = body

    def etag(self):
        return hashlib.md5(self.body).hexdigest()

    def get_object(self, **_):
        return {"Body": io.BytesIO(self.body), "ETag": self.etag()}

    def put_object(self, *, Body, IfMatch, **_):
        if self.etag() != IfMatch:
            raise ClientError("PreconditionFailed")
        self.body = Body


def recipe(name):
    """Returns a function of recipes.md."""
    [code] = [
        block
        for block in re.findall(r"```python\n(.*?)```", (FENCING / "recipes.md").read_text(), re.S)
        if f"def {name}(" in block
    ]
    known = {
        "ClientError": ClientError, "contextlib": contextlib, "fcntl": fcntl, "fencing": fencing, "os": os,
        "psycopg": psycopg, "re": re,
    }  # fmt: skip
    exec(code, known)
    return known[name]


@pytest.mark.parametrize("amount", [0, 20])
def test_object_storage_refuses_a_holder_after_the_next_holder_has_written(amount):
    """With the amount 0, the next holder only raises the fence."""
    replace = recipe("replace")
    s3 = S3(b"40\n100")

    def change(content):
        replace(s3, "invoice-42", 42, lambda content: b"%d" % (int(content) + amount))
        return b"%d" % (int(content) + 10)

    with pytest.raises(RuntimeError, match="a later holder"):
        replace(s3, "invoice-42", 41, change)
    assert s3.body == b"42\n%d" % (100 + amount)


def test_object_storage_keeps_both_writes_of_one_holder():
    """While the holder's first call is between its read and its write, its second call writes."""
    replace = recipe("replace")
    s3 = S3(b"40\n100")
    pending_write = [b"110"]

    def change(content):
        if pending_write:
            value = pending_write.pop()
            replace(s3, "invoice-42", 41, lambda _: value)
        return b"%d" % (int(content) + 1)

    replace(s3, "invoice-42", 41, change)
    assert s3.body == b"41\n111"


def test_object_storage_applies_a_write_once_when_its_answer_is_lost():
    """botocore repeats a request whose answer is lost. The repetition gets PreconditionFailed."""

    class Lossy(S3):
        def put_object(self, **arguments):
            super().put_object(**arguments)
            super().put_object(**arguments)

    s3 = Lossy(b"40\n100")
    recipe("replace")(s3, "invoice-42", 41, lambda content: b"%d" % (int(content) + 10))
    assert s3.body == b"41\n110"


def test_object_storage_raises_other_errors():
    class Denied(S3):
        def put_object(self, **_):
            raise ClientError("AccessDenied")

    with pytest.raises(ClientError):
        recipe("replace")(Denied(b"40\n100"), "invoice-42", 41, lambda content: content)


@pytest.fixture(scope="module")
def postgresql():
    require_databases()
    database = PostgreSQL()
    try:
        database.install()
        yield database
    finally:
        database.stop()


def test_an_http_api_chooses_the_status_by_the_fence(postgresql):
    request = recipe("request")
    postgresql.execute("DELETE FROM dlock_gate")

    def put(fence, write=lambda connection: None):
        with contextlib.closing(postgresql.connect()) as connection:
            return request({"Dlock-Fence": fence}, connection, write)

    assert request({}, None, None) == 428
    for wrong in "", "x", "0", "-1", "4_1", " 41", "41\n", "041", "41.0", str(2**53), str(2**63), "٤١":
        assert put(wrong) == 400
    assert [put(fence) for fence in ("41", "41", str(2**53 - 1), "41")] == [200, 200, 200, 412]

    # An error of the application's own tables is raised, not answered with 412.
    def violate(connection):
        connection.execute("CREATE TEMPORARY TABLE positive (amount integer CHECK (amount > 0))")
        connection.execute("INSERT INTO positive VALUES (0)")

    with pytest.raises(psycopg.errors.CheckViolation, match="positive"):
        put(str(2**53 - 1), write=violate)


def test_an_http_api_refuses_a_write_after_the_next_holder_has_read(postgresql):
    postgresql.execute(
        "DELETE FROM dlock_gate", "DROP TABLE IF EXISTS total", "CREATE TABLE total AS SELECT 100 AS value"
    )

    def send(fence, statement):
        with contextlib.closing(postgresql.connect()) as connection:
            return recipe("request")({"Dlock-Fence": fence}, connection, lambda c: c.execute(statement))

    read = "SELECT value FROM total"
    assert [send(fence, read) for fence in ("41", "42")] == [200, 200]
    assert send("41", "UPDATE total SET value = 110") == 412
    assert send("42", "UPDATE total SET value = 120") == 200
    with contextlib.closing(postgresql.connect()) as connection:
        assert connection.execute(read).fetchall() == [(120,)]


def add_slowly(path, fence, amount, is_inside, may_write):
    """Adds an amount to the number in a file, and waits between the read and the write."""
    with recipe("file_gate")(path, fence):
        total = int(path.read_text())
        is_inside.set()
        may_write.wait(60)
        path.write_text(str(total + amount))


def test_a_file_gate_makes_the_next_holder_wait_and_refuses_the_earlier_holder(tmp_path):
    path, file_gate = tmp_path / "invoice-42", recipe("file_gate")
    path.write_text("100")
    spawn = multiprocessing.get_context("spawn")
    first_is_inside, first_may_write, second_is_inside, second_may_write = (spawn.Event() for _ in range(4))
    first = spawn.Process(target=add_slowly, args=(path, 41, 10, first_is_inside, first_may_write))
    second = spawn.Process(target=add_slowly, args=(path, 42, 20, second_is_inside, second_may_write))
    try:
        first.start()
        assert first_is_inside.wait(60)
        second.start()
        until("the next holder waits for the file", lambda: waits_for_flock(second.pid), limit=60)
        assert not second_is_inside.is_set()
        first_may_write.set()
        assert second_is_inside.wait(60)
        second_may_write.set()
    finally:
        for process in first, second:
            process.join(60)
            process.kill()
    assert path.read_text() == "130"
    with pytest.raises(RuntimeError, match="a later holder"), file_gate(path, 41):
        pass
    for fence in 42, 2**53 - 1:
        with file_gate(path, fence):
            pass


def waits_for_flock(pid):
    with open("/proc/locks") as locks:
        return any(f"-> FLOCK  ADVISORY  WRITE {pid} " in line for line in locks)
