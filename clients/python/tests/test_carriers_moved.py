"""Holds and waits over each carrier while a slot of the cluster moves, or a Sentinel names another master."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import pytest
import redis
from conftest import (
    CLUSTER_OPTIONS,
    LIMIT,
    Server,
    calls,
    cluster_class,
    kill_master,
    patient_client,
    start_cluster,
    started_sentinel,
    stopped,
    until,
    until_renewed_twice,
)

import dlock
from dlock import _protocol, _single_attempt, _tasks, _threads
from dlock._clock import now

pytestmark = pytest.mark.usefixtures("patience")

SLOT = redis.crc.key_slot(b"foo")


def move_slot(source, target, others=(), in_circle=lambda: None):
    """Moves the slot of "foo" with its keys. ``in_circle``: called while the two nodes name each other."""
    ids = {client: client.execute_command("CLUSTER", "MYID").decode() for client in (source, target)}
    target.execute_command(f"CLUSTER SETSLOT {SLOT} IMPORTING {ids[source]}")
    source.execute_command(f"CLUSTER SETSLOT {SLOT} MIGRATING {ids[target]}")
    port = target.connection_pool.connection_kwargs["port"]
    for key in source.execute_command("CLUSTER", "GETKEYSINSLOT", SLOT, 100):
        assert source.execute_command("MIGRATE", "127.0.0.1", port, key, 0, 5000) in (b"OK", "OK", True)
    source.execute_command(f"CLUSTER SETSLOT {SLOT} NODE {ids[target]}")
    in_circle()
    nodes = target, source, *others
    for client in nodes:
        client.execute_command(f"CLUSTER SETSLOT {SLOT} NODE {ids[target]}")
    # The target has a new epoch now. A node that takes the slot over without it loses the slot again.
    until("all nodes know of the move", lambda: all(epochs(client) == epochs(target) for client in nodes))


def epochs(client):
    known = client.execute_command("CLUSTER NODES").values()
    return {node["node_id"]: node["epoch"] for node in known}


@pytest.fixture
def nodes(cluster, carrier):
    """Clients of the node that has the slot, and of the others. Moves the slot back in the end."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(patient_client(node)) for node in cluster]
        for client in clients:
            client.flushall()
        owner = clients[SLOT * 3 // 16384]
        others = [client for client in clients if client is not owner]
        kind = cluster_class(carrier.library, is_async=carrier.is_async)
        carrier.connect(lambda: kind.from_url(cluster[0].url, socket_timeout=LIMIT))
        yield owner, *others
        if others[0].execute_command("CLUSTER", "COUNTKEYSINSLOT", SLOT) or not owns(owner):
            move_slot(others[0], owner, others[1:])


def owns(client):
    try:
        client.exists("foo")
    except redis.ResponseError:  # moved
        return False
    return True


def waiting(carrier, lock, node):
    """Acquires in a thread, and waits until the client waits at the node. Returns the thread and the list of
    its outcome."""
    outcomes = []

    def acquire():
        try:
            outcomes.append(carrier.run(lock.acquire, blocking_timeout=LIMIT - 5))
        except Exception as why:
            outcomes.append(why)

    thread = threading.Thread(target=acquire)
    thread.start()
    until("the client waits", lambda: waits(node))
    return thread, outcomes


def until_replicated(client):
    """Waits until a replica has all writes so far. WAIT is about the writes of its own connection."""
    client.set("{foo}:last", 1)
    until("the replica has all writes", lambda: client.execute_command("WAIT", 1, 100) == 1)


def waits(node):
    """Returns whether the lock has a waiter there. A node without the slot of the key has none."""
    with contextlib.suppress(redis.ResponseError):
        return node.execute_command("DLOCK.WAITERS", "foo")
    return False


def grant(node, thread, outcomes):
    """Waits until the client waits at the node, releases the lock there, and waits for the acquisition."""
    until("the client waits there", lambda: waits(node))
    assert node.execute_command("DLOCK.RELEASE", "foo", "holder") == 1
    thread.join(LIMIT)
    assert outcomes == [True]


def test_a_hold_goes_along_with_its_slot(carrier, nodes):
    old, new, other = nodes
    lock = carrier.lock(timeout=60, auto_renew=True)
    carrier.run(lock.acquire)
    hold, fence = lock.local.hold, lock.fence
    move_slot(old, new, [other])
    hold.valid_until = now() + 30  # a renewal is due
    until("the new node has renewed the hold", lambda: hold.valid_until > now() + 45)
    assert new.execute_command("DLOCK.PTTL", "foo") > 45_000 and lock.fence == fence
    carrier.run(lock.release)
    assert not new.exists("foo")


def tracking(client):
    """Returns the connections for which the server tracks keys."""
    return {each["id"] for each in client.client_list() if "t" in each["flags"]}


@pytest.mark.parametrize("moves", [False, True])
def test_a_loss_is_noticed_without_a_renewal_where_the_slot_is(carrier, nodes, moves):
    old, new, other = nodes
    reasons = []
    earlier, checks = tracking(new), calls(old, "dlock.holds")
    lock = carrier.lock(timeout=600, on_lost=reasons.append)
    carrier.run(lock.acquire)
    until("the old node tracks the key", lambda: calls(old, "dlock.holds") > checks)
    if moves:
        move_slot(old, new, [other])
        until("the new node tracks the key", lambda: tracking(new) - earlier)
        assert not reasons
    assert (new if moves else old).execute_command("DLOCK.BREAK", "foo") == 1
    until("the loss is noticed", lambda: reasons)
    assert "broke" in reasons[0]
    with pytest.raises(dlock.LockNotOwnedError):
        carrier.run(lock.release)


def test_a_wait_goes_along_with_its_slot(carrier, nodes):
    old, new, other = nodes
    old.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
    lock = carrier.lock(timeout=60)
    thread, outcomes = waiting(carrier, lock, old)
    move_slot(old, new, [other])
    grant(new, thread, outcomes)
    carrier.run(lock.release)
    assert not new.exists("foo")


def holder(client):
    """Returns the CLIENT ID of the connection that an ephemeral hold is bound to."""
    found = dlock.Operator(client).inspect("foo").holders[0]
    assert found.ephemeral
    return found.client


def test_an_ephemeral_hold_ends_with_its_connection(carrier, nodes):
    old, *_ = nodes
    reasons = []
    lock = carrier.lock(timeout=600, ephemeral=True, on_lost=reasons.append)
    carrier.run(lock.acquire)
    old.execute_command("CLIENT", "KILL", "ID", holder(old))
    until("the loss is noticed", lambda: reasons)
    with pytest.raises(dlock.LockNotOwnedError):
        carrier.run(lock.release)


@pytest.mark.parametrize("by", ["on_lost", "renewal"])
def test_an_ephemeral_hold_ends_when_its_slot_moves(carrier, nodes, by):
    old, new, other = nodes
    reasons = []
    options = {"on_lost": reasons.append} if by == "on_lost" else {"auto_renew": True}
    lock = carrier.lock(timeout=600, ephemeral=True, **options)
    carrier.run(lock.acquire)
    hold = lock.local.hold
    assert holder(old)
    move_slot(old, new, [other])
    if by == "renewal":
        hold.valid_until = now() + 300  # a renewal is due
    until("the loss is noticed", lambda: hold.loss)
    with pytest.raises(dlock.LockNotOwnedError):
        carrier.run(lock.release)
    assert not new.exists("foo")


def test_an_ephemeral_lock_is_acquired_and_waited_for_where_its_slot_is(carrier, nodes):
    old, new, other = nodes
    lock = carrier.lock(timeout=60, ephemeral=True)
    carrier.run(lock.acquire)  # the client knows the old node
    carrier.run(lock.release)
    move_slot(old, new, [other])
    carrier.run(lock.acquire)
    assert holder(new)
    carrier.run(lock.release)

    new.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
    thread, outcomes = waiting(carrier, lock, new)
    move_slot(new, old, [other])
    grant(old, thread, outcomes)
    assert holder(old)
    carrier.run(lock.release)


def redirects(client):
    """Returns how many requests the node has redirected."""
    return client.info("errorstats").get("errorstat_MOVED", {}).get("count", 0)


def test_a_wait_outlasts_nodes_that_name_each_other_while_the_slot_moves(carrier, nodes):
    old, new, other = nodes
    old.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
    lock = carrier.lock(timeout=1.5)  # asks twice a second
    thread, outcomes = waiting(carrier, lock, old)

    def in_circle():
        before = redirects(old)
        # Valkey ends the circle by itself, sometimes at once.
        until("the client has asked both", lambda: outcomes or redirects(old) > before + 30 or owns(new))

    move_slot(old, new, [other], in_circle)
    assert not outcomes
    grant(new, thread, outcomes)
    carrier.run(lock.release)


@pytest.fixture
def behind_sentinel(sentinel, carrier):
    port, master = sentinel
    sentinels = carrier.package("sentinel").Sentinel
    carrier.connect(lambda: sentinels([("127.0.0.1", port)]).master_for("main", socket_timeout=LIMIT))
    with redis.Redis(port=port) as client:
        yield client, master


def new_master(sentinel, old):
    """Waits for the failover. Returns the port of the new master."""

    def found():
        _, port = map(bytes.decode, sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"))
        with contextlib.suppress(redis.RedisError), redis.Redis(port=port) as client:
            return int(port) != old and client.role()[0] == b"master" and port

    return until("there is a new master", found, 90)


def assert_loss_is_told(master, reasons):
    until("the new master tracks the key", lambda: tracking(master))
    assert not reasons
    assert master.execute_command("DLOCK.BREAK", "foo") == 1
    until("the loss is noticed", lambda: reasons)
    assert "broke" in reasons[0]


@pytest.mark.parametrize("killed", [False, True])
def test_a_hold_outlasts_a_failover_of_a_sentinel(carrier, behind_sentinel, killed):
    sentinel, master = behind_sentinel
    reasons = []
    lock = carrier.lock(timeout=60, auto_renew=True, on_lost=reasons.append)
    carrier.run(lock.acquire)
    hold = lock.local.hold
    with patient_client(master) as client:
        until_replicated(client)
    port = fail_over(sentinel, master, killed)
    with redis.Redis(port=port, socket_timeout=LIMIT) as client:
        hold.valid_until = now() + 30  # a renewal is due

        def is_renewed():
            hold._retry_at = now() if hold._retry_at not in (None, float("inf")) else hold._retry_at
            hold.valid_until -= 0.001
            return hold.valid_until > now() + 45

        until("the new master has renewed the hold", is_renewed)
        assert_loss_is_told(client, reasons)


def fail_over(sentinel, master, killed):
    """Ends the master, or makes it a replica. Returns the port of the new master."""
    if killed:
        kill_master(sentinel, master)
        return new_master(sentinel, master.port)
    until("the failover begins", lambda: begins_failover(sentinel))
    port = new_master(sentinel, master.port)
    # Until then it accepts writes, which are lost. Sentinel tells it about 10 s later, or at its next try.
    until("the former master is a replica", lambda: is_replica(master), 90)
    return port


def is_replica(server):
    with contextlib.suppress(redis.ConnectionError), patient_client(server) as client:
        return client.role()[0] == b"slave"
    return False


def begins_failover(sentinel):
    with contextlib.suppress(redis.ResponseError):  # no good replica yet
        return sentinel.execute_command("SENTINEL", "FAILOVER", "main")
    return False


@pytest.mark.parametrize("killed", [False, True])
def test_a_wait_outlasts_a_failover_of_a_sentinel(carrier, behind_sentinel, killed, monkeypatch):
    sentinel, master = behind_sentinel
    # On a busy machine, the sentinel may need a second try, which begins 6 s after the first.
    monkeypatch.setattr(_single_attempt, "KEEP", 90)
    lock = carrier.lock(timeout=60)
    with patient_client(master) as client:
        client.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
        until_replicated(client)
        thread, outcomes = waiting(carrier, lock, client)
    with redis.Redis(port=fail_over(sentinel, master, killed), socket_timeout=LIMIT) as client:
        grant(client, thread, outcomes)
    carrier.run(lock.release)


def switch(sentinel, master):
    """Lets the sentinel name another master, and forbids it to demote the former one, which it would do about
    10 s later. Returns the port of the new master."""
    with patient_client(master) as client:
        client.execute_command("ACL SETUSER default -replicaof -slaveof")
    until("the failover begins", lambda: begins_failover(sentinel))
    return new_master(sentinel, master.port)


def test_a_hold_goes_on_at_the_master_that_a_sentinel_names(carrier, behind_sentinel):
    sentinel, master = behind_sentinel
    reasons = []
    lock = carrier.lock(timeout=60, auto_renew=True, on_lost=reasons.append)
    carrier.run(lock.acquire)
    hold = lock.local.hold
    with patient_client(master) as client:
        until_replicated(client)
        hold.valid_until = now() + 30  # a renewal is due
        until("the background has a connection", lambda: calls(client, "dlock.extend"))
    with redis.Redis(port=switch(sentinel, master), socket_timeout=LIMIT) as client:
        until("the new master has renewed the hold", lambda: calls(client, "dlock.extend"))
        assert_loss_is_told(client, reasons)


def test_a_wait_goes_on_at_the_master_that_a_sentinel_names(carrier, behind_sentinel):
    sentinel, master = behind_sentinel
    lock = carrier.lock(timeout=60)
    with patient_client(master) as client:
        client.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
        until_replicated(client)
        thread, outcomes = waiting(carrier, lock, client)
    with redis.Redis(port=switch(sentinel, master), socket_timeout=LIMIT) as client:
        until("the client listens there", lambda: client.pubsub_channels("dlock:*"))
        grant(client, thread, outcomes)
        carrier.run(lock.release)
        assert not client.exists("foo")


def test_a_hold_leaves_the_former_master_during_the_failover(shared_server, carrier, tmp_path):
    """A sentinel that carries out a failover names the former master until all replicas follow the new one.
    Here, one of them never does."""
    master = Server(shared_server.program)
    replicas = [Server(shared_server.program, "--replicaof", "127.0.0.1", str(master.port)) for _ in range(2)]
    with contextlib.ExitStack() as stack:
        for server in master, *replicas:
            stack.callback(server.stop)
        client, other = (stack.enter_context(patient_client(server)) for server in (master, replicas[1]))
        until("both are connected", lambda: client.info("replication").get("connected_slaves") == 2)
        other.execute_command("CONFIG SET replica-priority 0")
        started = (started_sentinel(shared_server.program, tmp_path, master, 2) for _ in range(2))
        ports = [stack.enter_context(each) for each in started]
        first = stack.enter_context(redis.Redis(port=ports[0]))
        first.execute_command("SENTINEL SET main failover-timeout 600000")
        until("they know each other", lambda: len(first.sentinel_sentinels("main")) == 1)
        sentinels = carrier.package("sentinel").Sentinel([("127.0.0.1", port) for port in ports])
        carrier.connect(lambda: sentinels.master_for("main", socket_timeout=LIMIT))
        lock = carrier.lock(timeout=60, auto_renew=True)
        carrier.run(lock.acquire)
        lock.local.hold.valid_until = now() + 30  # a renewal is due
        until("the background has a connection", lambda: calls(client, "dlock.extend"))
        other.execute_command("ACL SETUSER default -replicaof -slaveof")
        with patient_client(replicas[0]) as new:
            until("the replica has the hold", lambda: new.exists("foo"))
            switch(first, master)
            until("the new master has renewed the hold", lambda: calls(new, "dlock.extend"))
        assert "failover_in_progress" in first.sentinel_masters()["main"]["flags"]
        carrier.run(lock.release)


def test_an_ephemeral_hold_ends_when_a_sentinel_names_another_master(carrier, behind_sentinel):
    sentinel, master = behind_sentinel
    reasons = []
    lock = carrier.lock(timeout=60, ephemeral=True, auto_renew=True, on_lost=reasons.append)
    carrier.run(lock.acquire)
    switch(sentinel, master)
    until("the loss is noticed", lambda: reasons)
    assert "another server is the master" in reasons[0]
    with pytest.raises(dlock.LockNotOwnedError):
        carrier.run(lock.release)


def looks_of(carrier, monkeypatch):
    """Returns a list that gets an entry whenever the client asks the sentinel for the master."""
    [sentinel], looks = carrier.client.connection_pool.sentinel_manager.sentinels, []
    look = sentinel.execute_command
    monkeypatch.setattr(sentinel, "execute_command", lambda *args: looks.append(args) or look(*args))
    return looks


def test_a_hold_and_a_wait_go_on_while_the_sentinel_hangs(carrier, behind_sentinel, monkeypatch):
    sentinel, master = behind_sentinel
    looks = looks_of(carrier, monkeypatch)
    lock, waiter = carrier.lock("held", timeout=60, auto_renew=True), carrier.lock(timeout=60)
    carrier.run(lock.acquire)
    process = sentinel.info("server")["process_id"]
    with patient_client(master) as client:
        client.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
        until_renewed_twice(client, lock)
        thread, outcomes = waiting(carrier, waiter, client)
        until("the client listens", lambda: client.pubsub_channels("dlock:*"))
        before = len(looks)
        os.kill(process, signal.SIGSTOP)
        try:
            until("the client asks the sentinel", lambda: len(looks) > before)
            until_renewed_twice(client, lock)
            grant(client, thread, outcomes)
        finally:
            os.kill(process, signal.SIGCONT)
    carrier.run(waiter.release)


def test_the_sentinel_is_asked_no_longer_than_there_is_work(carrier, behind_sentinel, monkeypatch):
    looks = looks_of(carrier, monkeypatch)
    for name in "_threads.LINK_IDLE", "_tasks.LINK_IDLE", "_waits.IDLE":
        monkeypatch.setattr(f"dlock.{name}", 0.1)
    lock = carrier.lock(timeout=60, auto_renew=True, on_lost=print)
    carrier.run(lock.acquire)
    before = len(looks)
    until("the client asks again and again", lambda: len(looks) > before + 1)
    background = carrier.run(_tasks.background) if carrier.is_async else _threads._background
    pool = id(carrier.client.connection_pool)
    assert pool in background._lookouts
    carrier.run(lock.release)
    until("the client asks no longer", lambda: pool not in background._lookouts)


def test_a_wait_outlasts_a_master_behind_sentinel_that_is_silent_at_first(sentinel, carrier, monkeypatch):
    port, master = sentinel
    sentinels = carrier.package("sentinel").Sentinel
    carrier.connect(lambda: sentinels([("127.0.0.1", port)]).master_for("main", socket_timeout=0.5))
    lock, outcomes, failures, real = carrier.lock(timeout=60), [], [], _protocol.is_passing
    monkeypatch.setattr("dlock._protocol.is_passing", lambda answer: failures.append(answer) or real(answer))

    def wait():
        try:
            outcomes.append(carrier.run(lock.acquire, blocking_timeout=LIMIT))
        except Exception as why:
            outcomes.append(why)

    with stopped(master):
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        until("two requests fail", lambda: len(failures) > 1 or outcomes)
    thread.join(LIMIT)
    assert outcomes == [True]
    carrier.run(lock.release)


@pytest.fixture
def replicated(shared_server, carrier):
    """The master of a cluster that has the slot of "foo", and its replica."""
    timeout = "--cluster-node-timeout", "3000"
    nodes = start_cluster(shared_server.program, *timeout)
    master, replica = nodes[SLOT * 3 // 16384], Server(shared_server.program, *CLUSTER_OPTIONS, *timeout)
    with patient_client(master) as client:
        name = client.execute_command("CLUSTER", "MYID").decode()
    with patient_client(replica) as client:
        own_name = client.execute_command("CLUSTER", "MYID").decode()
        client.execute_command("CLUSTER MEET", "127.0.0.1", master.port)
        until("the replica knows its master", lambda: begins(client, f"CLUSTER REPLICATE {name}"))
        until("the replica is in step", lambda: client.info("replication").get("master_link_status") == "up")
    for node in nodes:
        with patient_client(node) as client:

            def knows_replica(client=client):
                found = client.execute_command(f"CLUSTER REPLICAS {name}")
                return own_name in str(found)

            until("the cluster knows the replica", knows_replica)
    kind = cluster_class(carrier.library, is_async=carrier.is_async)
    carrier.connect(lambda: kind.from_url(nodes[0].url, socket_timeout=LIMIT))
    yield master, replica
    for node in [*nodes, replica]:
        node.stop()


def begins(client, command):
    with contextlib.suppress(redis.ResponseError):
        return client.execute_command(command)
    return False


def promote(replica, master, killed):
    """Ends the master, or makes it a replica."""
    if killed:
        master.kill()
    else:
        assert replica.execute_command("CLUSTER FAILOVER")
        until("the former master is a replica", lambda: is_replica(master))
    until("the replica is the master", lambda: replica.role()[0] == b"master")


def test_a_durable_hold_counts_the_replicas_of_its_own_node(carrier, replicated):
    with patient_client(replicated[1]) as replica:
        lock = carrier.lock(timeout=60, durable=(1, LIMIT / 2))
        assert carrier.run(lock.acquire)
        assert replica.dbsize() == 1
        carrier.run(lock.release)
    for name in "foo", "b":  # the node of "b" has no replica
        with pytest.raises(dlock.NotDurableError):
            carrier.run(carrier.lock(name, timeout=60, durable=(2 if name == "foo" else 1, 0.01)).acquire)


@pytest.mark.parametrize("killed", [False, True])
def test_a_hold_outlasts_a_failover_in_a_cluster(carrier, replicated, killed):
    master, replica = replicated
    reasons = []
    lock = carrier.lock(timeout=60, auto_renew=True, on_lost=reasons.append)
    carrier.run(lock.acquire)
    hold = lock.local.hold
    with patient_client(master) as client:
        until_replicated(client)
    with patient_client(replica) as client:
        promote(client, master, killed)
        hold.valid_until = now() + 30  # a renewal is due
        until("the new master has renewed the hold", lambda: hold.valid_until > now() + 45)
        assert_loss_is_told(client, reasons)


@pytest.mark.parametrize("killed", [False, True])
def test_a_wait_outlasts_a_failover_in_a_cluster(carrier, replicated, killed):
    master, replica = replicated
    lock = carrier.lock(timeout=60)
    with patient_client(master) as client:
        client.execute_command("DLOCK.ACQUIRE", "foo", "holder", 60_000)
        until_replicated(client)
        thread, outcomes = waiting(carrier, lock, client)
    with patient_client(replica) as client:
        promote(client, master, killed)
        grant(client, thread, outcomes)
    carrier.run(lock.release)
