"""By default, a cycle of waits between owners raises an error.

The server detects cycles by the names of owners. An owner lasts while its thread or task holds a lock. If
the server reports that an owner waits for itself, although it does not hold the lock, the client asks again
without a name."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import signal
import threading

import pytest
import redis
import redis.asyncio
from conftest import LIMIT, calls, patient_async_client, patient_client, queue_order, until
from redis.exceptions import ConnectionError

import dlock
import dlock.asyncio
from dlock import _protocol
from dlock._owners import this_thread


def waiters(r, name):
    return len(r.execute_command("DLOCK.WAITERS", name))


def release_when_waited_for(r, token):
    until("a client waits", lambda: waiters(r, "foo"))
    assert r.execute_command("DLOCK.RELEASE", "foo", token) == 1


@contextlib.contextmanager
def release_refused(r):
    """The server refuses RELEASE. Yields a function that starts a thread, which permits RELEASE once a client
    waits."""
    is_over = threading.Event()

    def permit_release():
        until("a client waits", lambda: waiters(r, "foo") or is_over.is_set())
        r.execute_command("ACL", "SETUSER", "default", "+dlock.release")

    thread = threading.Thread(target=permit_release)
    r.execute_command("ACL", "SETUSER", "default", "-dlock.release")
    try:
        yield thread.start
    finally:
        is_over.set()
        if thread.ident is not None:
            thread.join()
        r.execute_command("ACL", "SETUSER", "default", "+dlock.release")


def acquire_in_opposite_orders(make):
    """Runs two threads, which acquire two locks in opposite orders. Returns their outcomes."""
    outcomes, barrier = [], threading.Barrier(2)

    def work(first, second):
        one, two = make(first), make(second)
        with one:
            barrier.wait(LIMIT)
            try:
                with two:
                    outcomes.append("both")
            except dlock.DeadlockError:
                outcomes.append("deadlock")

    threads = [threading.Thread(target=work, args=names) for names in ("ab", "ba")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT)
    return sorted(outcomes)


@pytest.mark.parametrize("options", [{}, {"timeout": 300}], ids=["renewed", "timeout"])
def test_two_threads_that_acquire_two_locks_in_opposite_orders_get_a_deadlock(server, r, options):
    def make(name):
        return dlock.Lock(patient_client(server), name, **options)

    assert acquire_in_opposite_orders(make) == ["both", "deadlock"]


def test_two_threads_that_acquire_two_locks_in_opposite_orders_get_a_deadlock_from_a_quorum(masters):
    quorum = dlock.Quorum([patient_client(master) for master in masters])

    def make(name):
        return dlock.Redlock(quorum, name, timeout=300)

    assert acquire_in_opposite_orders(make) == ["both", "deadlock"]


@pytest.mark.parametrize("kind", ["lock", "redlock"])
def test_two_tasks_that_acquire_two_locks_in_opposite_orders_get_a_deadlock(server, r, kind):
    async def main():
        client = patient_async_client(server)
        acquired = [asyncio.Event(), asyncio.Event()]

        def make(name):
            if kind == "lock":
                return dlock.asyncio.Lock(client, name)
            return dlock.asyncio.Redlock(dlock.Quorum([client]), name)

        async def work(number, first, second):
            async with make(first):
                acquired[number].set()
                await acquired[1 - number].wait()
                try:
                    async with make(second):
                        return "both"
                except dlock.DeadlockError:
                    return "deadlock"

        found = await asyncio.gather(work(0, "a", "b"), work(1, "b", "a"))
        await client.connection_pool.disconnect()
        return sorted(found)

    assert asyncio.run(asyncio.wait_for(main(), 2 * LIMIT)) == ["both", "deadlock"]


@pytest.fixture
def later_queue(members, masters, monkeypatch):
    """A client, which cannot reach the first member at first, waits for the lock "foo" in the queue of the
    second one. "other" holds "foo" at all members. Yields a function that lets the client wait, and returns a
    function that returns the outcome of the wait; and the first and the second member."""
    monkeypatch.setattr("dlock._quorum_queue.ASK", 0.05)
    # What the client does not release must not expire during the test.
    monkeypatch.setattr("dlock._quorum_queue.SEARCH_TIME", 600_000)
    first, second, _ = (members.direct[member] for member in queue_order(members, masters))
    proxy = members.proxies[members.direct.index(first)]
    for member in members.direct:
        assert member.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000, "OWNER", "other")
    threads = []

    def wait(**options):
        lock, outcomes = members.lock(timeout=60, thread_local=False, **options), []

        def work():
            try:
                outcomes.append(lock.acquire(blocking_timeout=LIMIT) and lock.release())
            except Exception as why:
                outcomes.append(why)

        proxy.refuse = True
        proxy.drop()
        thread = threading.Thread(target=work)
        thread.start()
        threads.append(thread)
        until("the client waits in the second queue", lambda: waiters(second, "foo") == 1)
        proxy.refuse = False

        def outcome():
            thread.join(LIMIT)
            return outcomes[0]

        return outcome

    yield wait, first, second
    for member in members.direct:
        member.execute_command("DLOCK.RELEASE", "foo", "holder")
    for thread in threads:
        thread.join(LIMIT)
    until("no member has a hold", lambda: not any(members.held()))


def test_a_deadlock_of_waits_in_the_queues_of_two_members_is_found(later_queue, members):
    wait, first, second = later_queue
    with members.lock("bar", timeout=60, owner="me", thread_local=False):
        options = "QUEUE", 60_000, "OWNER", "other"
        assert first.execute_command("DLOCK.ACQUIRE", "bar", "waiter", 60_000, *options) is None
        why = wait(owner="me")()
        assert isinstance(why, dlock.DeadlockError), why
        assert "DEADLOCK me -> other -> me, at the lock 'foo'" in str(why)
        for member in first, second:
            until("nothing is left of the wait", lambda member=member: waiters(member, "foo") == 0)
        first.execute_command("DLOCK.RELEASE", "bar", "waiter")


def test_a_wait_in_a_later_queue_leaves_nothing_at_an_earlier_member(later_queue):
    """There, the lock is free at first. Then the owner of the wait holds it, which is no deadlock."""
    wait, first, second = later_queue
    first.execute_command("DLOCK.RELEASE", "foo", "holder")
    outcome, before = wait(owner="me"), calls(first, "dlock.acquire")
    until("the client asks twice", lambda: calls(first, "dlock.acquire") >= before + 2)

    def own_hold_begins():
        return first.execute_command("DLOCK.ACQUIRE", "foo", "mine", 60_000, "OWNER", "me")

    until("the lock is free there", own_hold_begins)
    before = calls(first, "dlock.acquire")
    until("the client asks twice", lambda: calls(first, "dlock.acquire") >= before + 2)
    assert waiters(second, "foo") == 1
    for member, token in (first, "mine"), (second, "holder"):
        member.execute_command("DLOCK.RELEASE", "foo", token)
    assert outcome() is None


@pytest.mark.parametrize("where", ["no owner", "the first queue"])
def test_a_wait_asks_only_the_member_of_its_queue(later_queue, where, members):
    wait, first, second = later_queue
    if where == "no owner":
        wait(owner="")
        own, other = second, first
    else:
        waiting = members.lock(timeout=60, thread_local=False, owner="me")
        thread = threading.Thread(target=waiting.acquire, kwargs={"blocking_timeout": LIMIT})
        thread.start()
        own, other = first, second
        until("the client waits in the first queue", lambda: waiters(first, "foo") == 1)
    before, asked = calls(other, "dlock.acquire"), calls(own, "dlock.acquire")
    until("the wait has repeated its request", lambda: calls(own, "dlock.acquire") >= asked + 3)
    assert calls(other, "dlock.acquire") == before
    if where == "the first queue":
        for member in members.direct:
            member.execute_command("DLOCK.RELEASE", "foo", "holder")
        thread.join(LIMIT)
        waiting.release()


def test_a_thread_that_waits_for_its_own_lock_gets_a_deadlock(r, server):
    with dlock.Lock(r, "foo", timeout=60), pytest.raises(dlock.DeadlockError):
        dlock.Lock(r, "foo", timeout=60).acquire()
    assert waiters(r, "foo") == 0


@pytest.mark.parametrize("kind", ["lock", "redlock"])
def test_a_thread_that_waits_for_its_own_lock_with_a_limit_gets_false(r, server, kind):
    def make():
        if kind == "lock":
            return dlock.Lock(r, "foo", timeout=60)
        return dlock.Redlock(dlock.Quorum([r]), "foo", timeout=60)

    with make():
        assert make().acquire(blocking_timeout=0.2) is False
    assert waiters(r, "foo") == 0


def test_a_thread_that_waits_with_a_limit_gets_its_own_lock_after_the_lease(r, server):
    lock = dlock.Lock(r, "foo", timeout=60)
    lock.acquire()
    token = lock.local.token

    def end_lease():
        until("a client waits", lambda: waiters(r, "foo"))
        r.execute_command("DLOCK.EXTEND", "foo", token, 1)

    helper = threading.Thread(target=end_lease)
    helper.start()
    other = dlock.Lock(r, "foo", timeout=60)
    assert other.acquire(blocking_timeout=LIMIT)
    helper.join()
    other.release()


@pytest.mark.parametrize(
    "options", [{"thread_local": False}, {"owner": ""}], ids=["shared object", "no owner"]
)
def test_no_owner_is_sent_for_a_shared_object_or_an_empty_owner(r, server, options):
    lock = dlock.Lock(r, "foo", timeout=60, **options)
    lock.acquire()
    other = dlock.Lock(r, "foo", timeout=60, **options)
    helper = threading.Thread(target=release_when_waited_for, args=[r, lock.local.token])
    helper.start()
    # This thread holds the lock, and waits for it without a time limit.
    assert other.acquire()
    helper.join()
    other.release()


def test_a_named_owner_waits_for_another_owner_in_the_same_thread(r, server):
    lock = dlock.Lock(r, "foo", timeout=60, owner="job 1")
    lock.acquire()
    helper = threading.Thread(target=release_when_waited_for, args=[r, lock.local.token])
    helper.start()
    other = dlock.Lock(r, "foo", timeout=60, owner="job 2")
    assert other.acquire()
    helper.join()
    other.release()


def test_a_named_owner_replaces_the_owner_of_the_thread(r, server):
    with dlock.Lock(r, "foo", timeout=60, owner="job 1", thread_local=False):
        same = dlock.Lock(r, "foo", timeout=60, owner="job 1")
        with pytest.raises(dlock.DeadlockError, match="job 1"):
            same.acquire()


def test_a_hold_that_the_background_releases_causes_no_deadlock(r, server, proxy):
    """The reply to ACQUIRE is lost, and the server refuses the release in the background at first."""
    client = redis.Redis.from_url(proxy.url, retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0))
    lock = dlock.Lock(client, "foo", timeout=600)
    proxy.match, proxy.cut_replies = b"ACQUIRE", 1
    with release_refused(r) as permit_when_a_client_waits:
        with pytest.raises(ConnectionError):
            lock.acquire(blocking=False)
        assert r.exists("foo")
        permit_when_a_client_waits()
        assert lock.acquire()
        lock.release()


@pytest.mark.parametrize("kind", ["lock", "redlock"])
def test_a_hold_whose_release_the_server_refused_causes_no_deadlock(r, server, kind):
    def make(name="foo"):
        if kind == "lock":
            return dlock.Lock(r, name, timeout=600)
        return dlock.Redlock(dlock.Quorum([r]), name, timeout=600)

    # While the thread holds another lock, it keeps its owner, and the server still has the hold under it.
    with make("other"):
        held = make()
        held.acquire()
        with release_refused(r) as permit_when_a_client_waits:
            with pytest.raises(redis.RedisError):
                held.release()
            permit_when_a_client_waits()
            other = make()
            # Waits until the background has released the hold.
            assert other.acquire()
            other.release()


def refused_releases(r):
    """Returns the number of refused RELEASEs. Only with a server of one test: the background repeats those of
    earlier tests."""
    stats = r.info("commandstats").items()
    return sum(found["rejected_calls"] for name, found in stats if name.lower() == "cmdstat_dlock.release")


class Interruption(BaseException):
    """Raised by a signal handler, as the soft time limit of Celery is."""


@pytest.mark.parametrize("holds_another", [False, True])
def test_a_wait_that_signals_end_causes_no_deadlock(own_server, patience, holds_another):
    """The second signal ends the cleanup, while the server refuses the RELEASE. So the server still has the
    queue position when the thread waits again."""

    interruptions = []

    def handle(*_):
        if interruptions:
            raise interruptions.pop()

    def interrupt():
        # If a signal arrives just before a call that blocks, Python runs the handler after that call, unless
        # another signal ends it.
        interruptions.append(Interruption())
        until("the handler has run", lambda: signal_main_thread() or not interruptions)

    def signal_main_thread():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    def send_signals():
        until("the client waits", lambda: waiters(r, "foo"))
        interrupt()
        until("the client gives up its position", lambda: refused_releases(r))
        interrupt()

    with patient_client(own_server) as r, contextlib.ExitStack() as stack:
        if holds_another:
            stack.enter_context(dlock.Lock(r, "other", timeout=600))
        r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
        stack.callback(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, handle))
        stack.enter_context(release_refused(r))
        helper = threading.Thread(target=send_signals)
        helper.start()
        with pytest.raises(Interruption):
            dlock.Lock(r, "foo", timeout=600).acquire()
        helper.join()
        assert dlock.Lock(r, "foo", timeout=600).acquire(blocking_timeout=0.1) is False
        r.execute_command("ACL", "SETUSER", "default", "+dlock.release")
        r.execute_command("DLOCK.RELEASE", "foo", "holder")
        assert dlock.Lock(r, "foo", timeout=600).acquire()


@pytest.mark.parametrize("holds_another", [False, True])
@pytest.mark.parametrize("kind", ["lock", "redlock"])
def test_a_wait_that_is_cancelled_twice_causes_no_deadlock(own_server, patience, kind, holds_another):
    """anyio cancels a task at every await until its scope is left."""
    r = patient_client(own_server)

    async def main():
        async with patient_async_client(own_server) as client, contextlib.AsyncExitStack() as stack:
            quorum = dlock.Quorum([client])
            # The client queues at once, and so releases nothing before it is cancelled.
            quorum.contention.note_taken(b"foo")

            def make(name):
                if kind == "lock":
                    return dlock.asyncio.Lock(client, name, timeout=600)
                return dlock.asyncio.Redlock(quorum, name, timeout=600)

            async def cancel(task):
                while not waiters(r, "foo"):
                    await asyncio.sleep(0.005)
                task.cancel()
                while not refused_releases(r):
                    await asyncio.sleep(0.005)
                task.cancel()

            if holds_another:
                await stack.enter_async_context(make("other"))
            r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
            with release_refused(r):
                canceller = asyncio.create_task(cancel(asyncio.current_task()))
                with pytest.raises(asyncio.CancelledError):
                    await make("foo").acquire()
                # The second cancellation may arrive here.
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([canceller])
                waiting = asyncio.create_task(end_hold_when_two_wait())
                await make("foo").acquire()
                await waiting

    async def end_hold_when_two_wait():
        while waiters(r, "foo") < 2:
            await asyncio.sleep(0.005)
        r.execute_command("ACL", "SETUSER", "default", "+dlock.release")
        r.execute_command("DLOCK.RELEASE", "foo", "holder")

    with r:
        asyncio.run(asyncio.wait_for(main(), LIMIT))


def test_a_repeated_request_names_the_owner_again(r, server, monkeypatch):
    """Otherwise a deadlock of two renewed holders would never be found."""
    monkeypatch.setattr("dlock._waits.ASK", 0.05)

    def ask_as(owner, key, token, *options):
        return r.execute_command("DLOCK.ACQUIRE", key, token, 60_000, *options, "OWNER", owner)

    def finds_deadlock():
        """Returns whether the server finds that the owner "helper" and the thread wait for each other."""
        try:
            assert ask_as("helper", "other", "waiter", "QUEUE", 1000) is None
        except redis.ResponseError as why:
            assert str(why).startswith("DEADLOCK")
            return True
        r.execute_command("DLOCK.RELEASE", "other", "waiter")
        return False

    def help_thread():
        until("both wait", lambda: waiters(r, "foo") == 2)
        until("the server finds the deadlock", finds_deadlock)
        for token in "old", "holder":
            r.execute_command("DLOCK.RELEASE", "foo", token)

    with dlock.Lock(r, "other", timeout=600):
        assert ask_as("helper", "foo", "holder") is not None
        # The server has a position of this thread's owner that the process has given up.
        assert ask_as(this_thread().owner().name, "foo", "old", "QUEUE", 60_000) is None
        helper = threading.Thread(target=help_thread)
        helper.start()
        lock = dlock.Lock(r, "foo", timeout=600)
        assert lock.acquire()
        helper.join()
        lock.release()


@pytest.mark.parametrize("owner", ["plain", "a -> b"])
def test_an_owner_of_any_name_waits_beside_an_earlier_position_of_its_own(r, server, owner):
    r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
    options = "QUEUE", 60_000, "OWNER", owner
    assert r.execute_command("DLOCK.ACQUIRE", "foo", "earlier", 60_000, *options) is None
    lock = dlock.Lock(r, "foo", timeout=60, owner=owner)
    assert lock.acquire(blocking_timeout=0.1) is False
    text = "at the lock 'foo-2': this owner would wait for itself: release the lock first"
    with dlock.Lock(r, "foo-2", timeout=60, owner=owner), pytest.raises(dlock.DeadlockError, match=text):
        dlock.Lock(r, "foo-2", timeout=60, owner=owner).acquire()


def test_the_error_for_a_deadlock_names_the_lock_and_what_to_do(r, server):
    r.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000, "OWNER", "other")
    with dlock.Lock(r, "bar", timeout=60):
        r.execute_command("DLOCK.ACQUIRE", "bar", "waiter", 60_000, "QUEUE", 60_000, "OWNER", "other")
        with pytest.raises(dlock.DeadlockError, match="at the lock 'foo': release your locks, then retry"):
            dlock.Lock(r, "foo", timeout=60).acquire()


@pytest.mark.parametrize(
    ("cycle", "is_own"),
    [("a -> a", True), ("a -> b -> a -> b", True), ("a -> b -> a", False), ("ab -> a", False), ("a", False)],
)
def test_a_deadlock_of_an_owner_with_itself_is_recognised(cycle, is_own):
    assert _protocol.is_own_deadlock(redis.ResponseError(f"DEADLOCK {cycle}")) is is_own


def test_an_owner_lasts_until_its_thread_holds_nothing(r, server):
    first, second = dlock.Lock(r, "one", timeout=60), dlock.Lock(r, "two", timeout=60)
    first.acquire()
    owner = this_thread().owner()
    second.acquire()
    first.release()
    assert this_thread().owner() is owner
    second.release()
    assert this_thread().owner().name != owner.name


def test_a_lost_hold_causes_no_deadlock_while_its_lease_lasts_on_the_server(r, server):
    lock = dlock.Lock(r, "foo", timeout=600)
    lock.acquire()
    # The client counts the hold as lost, while the lease on the server still lasts.
    lock.local.hold.valid_until = 0
    assert lock.lost.is_set()
    helper = threading.Thread(target=release_when_waited_for, args=[r, lock.local.hold.token])
    helper.start()
    other = dlock.Lock(r, "foo", timeout=60)
    assert other.acquire()
    helper.join()
    other.release()


@pytest.mark.parametrize("options", [{"thread_local": False}, {"owner": ""}, {"owner": "job 1"}])
def test_the_loss_of_a_hold_with_no_or_another_owner_keeps_the_owner_name_of_the_thread(r, server, options):
    with dlock.Lock(r, "other", timeout=600):
        name = this_thread().owner().name
        lock = dlock.Lock(r, "foo", timeout=600, **options)
        lock.acquire()
        lock.local.hold.valid_until = 0
        assert lock.lost.is_set()
        assert this_thread().owner().name == name


def test_the_loss_of_all_holds_ends_the_owner(r, server):
    locks = [dlock.Lock(r, name, timeout=600) for name in ("one", "two")]
    for lock in locks:
        lock.acquire()
    owner = this_thread().owner()
    locks[0].local.hold.valid_until = 0
    assert this_thread().owner() is owner
    locks[1].local.hold.valid_until = 0
    assert this_thread().owner() is not owner


def test_a_deadlock_error_keeps_the_name_of_the_owner(r, server):
    with dlock.Lock(r, "foo", timeout=60):
        # With a new name, the second acquire would wait for the hold, and raise no error.
        for _ in range(2):
            with pytest.raises(dlock.DeadlockError):
                dlock.Lock(r, "foo", timeout=60).acquire()


def test_a_forked_process_has_owners_of_its_own():
    def child(answers):
        answers.put(this_thread().owner().name)

    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=child, args=(answers,))
    mine = this_thread().owner().name
    process.start()
    assert answers.get(timeout=LIMIT) != mine
    process.join()


@pytest.mark.parametrize(
    "name",
    ["pool/" + "ü" * 200, "\N{GRINNING FACE}" * 64, "\ud800" * 64],
    ids=["two bytes", "four bytes", "surrogates"],
)
def test_an_owner_has_no_slash_and_a_limited_length_whatever_the_name_of_the_thread(name):
    found = []
    thread = threading.Thread(target=lambda: found.append(this_thread().owner().name), name=name)
    thread.start()
    thread.join()
    (owner,) = found
    assert b"/" not in owner and len(owner) < 128
