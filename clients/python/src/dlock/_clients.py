"""Checks that the user's client is one of redis-py or valkey-py. Makes further clients and connections to the
same server, with short time limits: for background work, and for the requests to a member of a quorum."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import random
import sys
import threading
import weakref
from collections.abc import Awaitable, Iterator, Mapping
from typing import Any, Callable, Protocol, TypeVar

from redis import exceptions
from redis.exceptions import (
    AskError,
    ClusterDownError,
    ClusterError,
    ConnectionError,
    MovedError,
    NoPermissionError,
    RedisClusterException,
    ResponseError,
    TimeoutError,
    TryAgainError,
)

from . import _protocol
from ._clock import now
from ._protocol import Args
from ._steps import LIMIT, Peer

# The library name that CLIENT LIST shows for connections of background work (from Redis 7.2 and Valkey 8 on).
LIBRARY_NAME = "dlock-client"

# Most connections of the user's pool that the callers use at once.
MOST_CONNECTIONS = 50

# Greatest number of connections with an unanswered ACQUIRE that each `Pipe` leaves open.
MAX_UNANSWERED = 100

Address = tuple[str, int]


class SyncClient(Protocol):
    """`redis.Redis`, `redis.RedisCluster`, `valkey.Valkey` or `valkey.ValkeyCluster`."""

    def execute_command(self, *args: Any, **options: Any) -> Any: ...

    def __enter__(self) -> Any: ...


class AsyncClient(Protocol):
    """`redis.asyncio.Redis`, and the other classes of `SyncClient` in their asyncio packages."""

    def execute_command(self, *args: Any, **options: Any) -> Awaitable[Any]: ...

    def __aenter__(self) -> Awaitable[Any]: ...


C = TypeVar("C")

# By package: the names of its class for a single server and of its class for a cluster.
LIBRARIES = {"redis": ("Redis", "RedisCluster"), "valkey": ("Valkey", "ValkeyCluster")}


# The classes that `check_client` has accepted, with its other arguments.
_checked: set[tuple[type, bool, bool]] = set()


def check_client(client: Any, needed_by: str, *, is_async: bool, single: bool = False) -> None:
    """Raises TypeError unless ``client`` is a client of redis-py or valkey-py: a client for asyncio if
    ``is_async`` is true, and a client for threads otherwise. If ``single`` is true, a client for a cluster is
    refused, too. ``needed_by``: what needs the client, for the message."""
    kind = type(client), is_async, single
    if kind in _checked:
        return
    for client_class, class_is_async, is_cluster in _client_classes():
        if not isinstance(client, client_class) or _is_pipeline(client):
            continue
        if class_is_async == is_async and not (single and is_cluster):
            _checked.add(kind)
            return
    raise TypeError(
        f"{needed_by} needs {_wanted_client(is_async, single)}, and got "
        + _given_client(client, is_async, needed_by)
    )


def is_async_client(client: Any) -> bool:
    """Returns whether ``client`` is a client for asyncio."""
    return any(is_async and isinstance(client, kind) for kind, is_async, _ in _client_classes())


def _client_classes() -> Iterator[tuple[type, bool, bool]]:
    """Yields each class of clients, whether it is for asyncio, and whether it is for clusters."""
    for package, names in LIBRARIES.items():
        for module, is_async in (package, False), (f"{package}.asyncio", True):
            # If a module is not loaded, no client of one of its classes can exist.
            loaded = sys.modules.get(module)
            for name, is_cluster in zip(names, (False, True)):
                if loaded is not None:
                    yield getattr(loaded, name), is_async, is_cluster


def _is_pipeline(client: Any) -> bool:
    return any(
        base.__name__ in ("Pipeline", "ClusterPipeline") and _library(base) in LIBRARIES
        for base in type(client).__mro__
    )


def _wanted_client(is_async: bool, single: bool) -> str:
    module = ".asyncio" if is_async else ""
    return f"a client of {'one server' if single else 'redis-py or valkey-py'} (redis{module}.Redis(...))"


def _given_client(client: Any, is_async: bool, needed_by: str) -> str:
    if client is None:
        return "None"
    if isinstance(client, (str, bytes)):
        return f"text: make a client with redis{'.asyncio' if is_async else ''}.Redis.from_url(...)"
    if isinstance(client, type):
        return f"the class {client.__name__}: pass an object of it"
    name = f"{type(client).__module__}.{type(client).__name__}"
    if _is_pipeline(client):
        return f"{name}, which sends nothing before its execute(): pass the client that made it"
    if is_async_client(client) and not is_async:
        return f"{name}: use dlock.asyncio with it"
    if any(isinstance(client, kind) for kind, _, _ in _client_classes()) and is_async:
        return f"{name}: use dlock with it, and not dlock.asyncio"
    # A `Quorum`. Its module imports this one, so the class cannot be imported here.
    if hasattr(client, "majority"):
        is_lock = needed_by.endswith(".Lock")
        return f"{name}: {'use Redlock with it' if is_lock else 'pass the client of one of its members'}"
    return name


def translated(why: BaseException) -> BaseException:
    """Translates an error of valkey-py to the error of redis-py, and the trace of a closed connection that
    neither has noticed to a `ConnectionError`. Returns any other error as it is."""
    if isinstance(why, (AttributeError, TypeError)) and _raised_by_carrier(why):
        closed = exceptions.ConnectionError(f"the connection was closed while it was used ({why!r})")
        closed.__cause__ = why
        return closed
    if _package(type(why)) != "valkey":
        return why
    for base in type(why).__mro__:
        kind = getattr(exceptions, base.__name__.replace("Valkey", "Redis"), None)
        if kind is not None:
            redis_error: BaseException = kind(*why.args)
            redis_error.__dict__.update(why.__dict__)
            redis_error.__cause__ = why
            return redis_error
    return why


def _raised_by_carrier(why: BaseException) -> bool:
    """Returns whether redis-py, valkey-py or asyncio has raised the error. They use a connection that another
    caller or the server has just closed, and find None: redis-py's issues 732, 3835 and 4287."""
    raised = why.__traceback__
    while raised is not None and raised.tb_next is not None:
        raised = raised.tb_next
    module = "" if raised is None else raised.tb_frame.f_globals.get("__name__", "")
    return module.partition(".")[0] in (*LIBRARIES, "asyncio")


def is_cluster(client: Any) -> bool:
    return hasattr(client, "nodes_manager")


def finds_master(client: Any) -> bool:
    """Returns whether the client looks up the address of the master, as for a cluster or behind Sentinel. If
    no server is at this address, the master has probably failed."""
    return is_cluster(client) or hasattr(getattr(client, "connection_pool", None), "sentinel_manager")


def sentinels(client: Any) -> Any:
    """Returns the `Sentinel` object that names the master of a client; None if there is none."""
    pool = getattr(client, "connection_pool", None)
    return getattr(pool, "sentinel_manager", None) if getattr(pool, "is_master", False) else None


class Master:
    """One master of a cluster, as a client."""

    def __init__(self, cluster: Any, node: Any) -> None:
        self._cluster = cluster
        self._node = node

    def execute_command(self, *args: Any) -> Any:
        """Returns the reply, for asyncio an awaitable of it."""
        return self._cluster.execute_command(*args, target_nodes=self._node)


def execute_at(client: Any, key: bytes, command: Args) -> Any:
    """Sends a command to the node of a key. ``client``: of a cluster. Returns the reply, for asyncio an
    awaitable of it."""
    if isinstance(client, Nodes):
        return client.execute_at(key, command)
    return Master(client, client.get_node_from_key(key)).execute_command(*command)


# By cluster client of asyncio: a client of each node, by its address. It has the options of the node's
# connections, and no connection.
_node_clients: weakref.WeakKeyDictionary[Any, dict[Address, Any]] = weakref.WeakKeyDictionary()


def node_client(cluster: Any, key: bytes) -> Any:
    """Returns a client of the node that has the slot of a key, as far as the client of the cluster knows: the
    same object for the same node."""
    node = cluster.get_node_from_key(key)
    get_client = getattr(cluster, f"get_{_package(type(cluster))}_connection", None)
    if get_client is not None:
        return get_client(node)
    clients = _node_clients.setdefault(cluster, {})
    at = _node_address(node)
    if at not in clients:
        clients[at] = _own_async(node.connection_class, node.connection_kwargs)
    return clients[at]


def masters(client: Any) -> list[Any]:
    """Returns the masters of a cluster. For a client of a single server, that client."""
    return [Master(client, node) for node in client.get_primaries()] if is_cluster(client) else [client]


def encoder(client: Any) -> Any:
    return client.get_encoder() if hasattr(client, "get_encoder") else client.connection_pool.get_encoder()


def address(client: Any) -> str:
    """Returns the address of a client's server, as text."""
    options = client.connection_pool.connection_kwargs
    return str(options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}")


# Clients for background work, such as renewals.


def _package(kind: Any) -> str:
    """Returns the package of a class of redis-py or valkey-py, or of a subclass."""
    names = (_library(base) for base in kind.__mro__)
    return next((name for name in names if name in LIBRARIES), "redis")


def _library(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _from_package(kind: Any, name: str) -> Any:
    """Returns the object `name`, such as "asyncio.ConnectionPool", from the package of the class `kind`."""
    module, _, attribute = f"{_package(kind)}.{name}".rpartition(".")
    return getattr(importlib.import_module(module), attribute)


OnId = Callable[[int], object]


def own_client(client: Any, on_id: OnId | None = None) -> Any:
    """Returns a client for background work, to the same server, with a connection pool of its own. A client
    of a Sentinel still asks the Sentinel for the master. ``on_id``: called with the CLIENT ID of each
    connection, which then is for a subscription, with RESP2."""
    pool = getattr(client, "connection_pool", None)
    if pool is None:
        # The client of a cluster, or a `Quorum`: background work uses the object itself.
        return client
    kind = pool.connection_class
    return _client(kind, _named_options(kind, pool.connection_kwargs, on_id))


def separate_client(client: Any, seconds: float, key: bytes) -> Any:
    """Returns a client with one connection of its own to the same server, in a cluster to the node of a key,
    without retries. A reply may take ``seconds`` longer than the user's client permits."""
    if is_cluster(client):
        return SlotClient(client, seconds, key)
    kind, options = client.connection_pool.connection_class, client.connection_pool.connection_kwargs
    return _client(kind, {**_named_options(kind, options), "socket_timeout": _longer(options, seconds)})


def separate_async_client(client: Any, seconds: float, key: bytes) -> Any:
    """Does the same as `separate_client`, for asyncio."""
    if is_cluster(client):
        return AsyncSlotClient(client, seconds, key)
    kind, options = client.connection_pool.connection_class, client.connection_pool.connection_kwargs
    own = {**_named_async_options(kind, options), "socket_timeout": _longer(options, seconds)}
    return _client(kind, own, "asyncio.")


class SlotClient:
    """A client with one connection of its own to the node of a key in a cluster. If the node names another
    one, the connection is closed, and the command sent to the other node over a new one. After an error of
    the connection, the next command looks for the node anew. Once `stays` is set, it does neither."""

    def __init__(self, cluster: Any, seconds: float, key: bytes) -> None:
        self.stays = False
        self._cluster = cluster
        self._seconds = seconds
        self._key = key
        # The client of the node. None before the first command.
        self._own: Any = None
        self._must_find = False

    def execute_command(self, *args: Any) -> Any:
        for is_last in False, False, True:
            if self._must_find and not self.stays:
                self.disconnect()
                # The user's client follows the redirects.
                self._cluster.execute_command(*_protocol.pttl(self._key))
                self._own, self._must_find = None, False
            if self._own is None:
                self._own = separate_client(node_client(self._cluster, self._key), self._seconds, self._key)
            try:
                return self._own.execute_command(*args)
            except Exception as why:
                self._note_error(why, is_last)

    def _note_error(self, why: Exception, is_last: bool) -> None:
        """Raises the error, unless the command is sent to another node."""
        failure = translated(why)
        if self.stays:
            raise why
        self._must_find = isinstance(failure, (MovedError, ClusterDownError, ConnectionError, TimeoutError))
        if is_last or not isinstance(failure, MovedError):
            # The slot is being moved: so does the user's client call that.
            raise ClusterError(str(failure)) if isinstance(failure, AskError) else why

    def disconnect(self) -> Any:
        """Closes the connection. Returns an awaitable for a client of asyncio."""
        return None if self._own is None else self._own.connection_pool.disconnect()


class AsyncSlotClient(SlotClient):
    """The same as `SlotClient`, for asyncio."""

    async def execute_command(self, *args: Any) -> Any:
        for is_last in False, False, True:
            if self._must_find and not self.stays:
                await self.disconnect()
                await self._cluster.execute_command(*_protocol.pttl(self._key))
                self._own, self._must_find = None, False
            if self._own is None:
                await self._cluster.initialize()
                node = node_client(self._cluster, self._key)
                self._own = separate_async_client(node, self._seconds, self._key)
            try:
                return await self._own.execute_command(*args)
            except Exception as why:
                self._note_error(why, is_last)

    async def disconnect(self) -> None:
        """Closes the connection."""
        if self._own is not None:
            await self._own.connection_pool.disconnect()


def disconnect(client: Any) -> Any:
    """Closes the connection of a `separate_client`. Returns an awaitable for a client of asyncio."""
    return getattr(client, "connection_pool", client).disconnect()


def _longer(options: Mapping[str, Any], seconds: float) -> float | None:
    limit: float | None = options.get("socket_timeout")
    return None if limit is None else limit + seconds


def _client(kind: Any, options: Mapping[str, Any], module: str = "") -> Any:
    """Returns a client with a pool of such connections. ``module``: "asyncio." for a client of asyncio."""
    own = _from_package(kind, f"{module}ConnectionPool")(connection_class=kind, **options)
    return _from_package(kind, module + LIBRARIES[_package(kind)][0])(connection_pool=own)


def own_async_client(client: Any, *, subscribes: bool = False, on_id: OnId | None = None) -> Any:
    """Does the same as `own_client`, for asyncio. ``subscribes``: whether the client is for a
    subscription."""
    if is_cluster(client):
        # Not every version of redis-py can subscribe through a cluster client. A single node suffices: in a
        # cluster, published messages reach every node.
        node = client.get_random_node()
        return _own_async(node.connection_class, node.connection_kwargs) if subscribes else Nodes(client)
    pool = getattr(client, "connection_pool", None)
    return client if pool is None else _own_async(pool.connection_class, pool.connection_kwargs, on_id)


def _own_async(kind: Any, connection_options: Mapping[str, Any], on_id: OnId | None = None) -> Any:
    return _client(kind, _named_async_options(kind, connection_options, on_id), "asyncio.")


def _named_options(kind: Any, options: Mapping[str, Any], on_id: OnId | None = None) -> dict[str, Any]:
    """Returns the options of a background connection that gives itself a library name. ``on_id``: see
    `own_client`."""
    options = _own_options(kind, options)
    if on_id is not None:
        options = _with_resp2(options)
    name, connect_function = _connect_function(kind, options)

    def on_connect(connection: Any) -> None:
        connect_function(connection)
        for command, on_reply in _first_commands(on_id):
            connection.send_command(*command, check_health=False)
            try:
                on_reply(connection.read_response())
            except Exception as why:
                if not isinstance(translated(why), ResponseError):
                    raise

    return {**options, name: on_connect}


def _first_commands(on_id: OnId | None) -> Iterator[tuple[Args, Callable[[Any], object]]]:
    """Returns the first commands on a connection of the background, with a function for each reply. The
    server may refuse them: SETINFO is unknown before Redis 7.2 and Valkey 8."""
    yield _protocol.set_library_name(LIBRARY_NAME), lambda reply: None
    if on_id is not None:
        yield ("CLIENT", "ID"), on_id


def _with_resp2(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a connection with RESP2. The subscription and the connection that tracks keys
    for it must speak the same protocol: the server announces a flush in that of the tracking connection.
    redis-py 8 announces maintenance only with RESP3, and refuses its options otherwise."""
    kept = {name: value for name, value in options.items() if not name.startswith("maint_notifications")}
    return {**kept, "protocol": 2}


def _own_connection(pool: Any, *, named: bool) -> Any:
    """Returns a connection with RESP2 and the options of a pool. ``named``: whether it gives itself a library
    name."""
    kind, options = pool.connection_class, _with_resp2(pool.connection_kwargs)
    return kind(**(_named_options if named else _own_options)(kind, options))


def _own_async_connection(pool: Any, *, named: bool) -> Any:
    kind, options = pool.connection_class, _with_resp2(pool.connection_kwargs)
    return kind(**(_named_async_options if named else _own_options)(kind, options))


def _named_async_options(kind: Any, options: Mapping[str, Any], on_id: OnId | None = None) -> dict[str, Any]:
    options = _own_options(kind, options)
    if on_id is not None:
        options = _with_resp2(options)
    name, connect_function = _connect_function(kind, options)

    async def on_connect(connection: Any) -> None:
        connected = connect_function(connection)
        if inspect.isawaitable(connected):
            await connected
        for command, on_reply in _first_commands(on_id):
            await connection.send_command(*command, check_health=False)
            try:
                on_reply(await connection.read_response())
            except Exception as why:
                if not isinstance(translated(why), ResponseError):
                    raise

    return {**options, name: on_connect}


def _connect_function(kind: Any, options: Mapping[str, Any]) -> tuple[str, Callable[[Any], Any]]:
    """Returns the name of the option for the function that sets up a new connection, and that function."""
    name = f"{_package(kind)}_connect_func"
    return name, options.get(name) or kind.on_connect


def _own_options(kind: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a background connection: the options of the client's connections, with short
    time limits and without retries."""
    names = "socket_timeout", "socket_connect_timeout"
    limits = {name: min(options.get(name) or LIMIT, LIMIT) for name in names}
    is_async = ".asyncio" in kind.__module__ or inspect.iscoroutinefunction(kind.connect)
    retry = _from_package(kind, "asyncio.retry.Retry" if is_async else "retry.Retry")(
        _from_package(kind, "backoff.NoBackoff")(), 0
    )
    # Messages are compared as bytes.
    return {**options, **limits, "retry": retry, "decode_responses": False}


# By connection pool: the longest DELAY of a RELEASE, in ms, that its server is known to accept.
_longest_delays: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def accepts_delay(client: Any, delay: int) -> bool:
    """Returns whether the server of a client is known to accept this DELAY of a RELEASE, in ms."""
    return delay <= _longest_delays.get(getattr(client, "connection_pool", client), -1)


def note_delay(client: Any, delay: int) -> None:
    """Called when the server of a client has accepted this DELAY, in ms, unless it accepts it already."""
    _longest_delays[getattr(client, "connection_pool", client)] = delay


def close_idle_connections(client: Any) -> Any:
    """Closes the connections of a client that no command uses, so that the next command connects through the
    address. Returns an awaitable for a client of asyncio. Does nothing for a cluster, whose client follows
    its masters."""
    pool = getattr(client, "connection_pool", None)
    if pool is None:
        return None
    # The address may lead to another server now.
    _longest_delays.pop(pool, None)
    try:
        closing = pool.disconnect(False)
    except TypeError:
        # `BlockingConnectionPool` of redis-py before version 8 can only close all.
        closing = pool.disconnect()
    # The only connection of a client with `single_connection_client`, which the pool counts as used.
    single = getattr(client, "connection", None)
    if inspect.isawaitable(closing):
        return _close_idle(closing, single, getattr(client, "_single_conn_lock", None))
    if single is not None:
        # Clients without this lock can serve one thread only, which sends nothing now.
        lock = getattr(client, "single_connection_lock", None) or threading.Lock()
        if lock.acquire(blocking=False):
            try:
                single.disconnect()
            finally:
                lock.release()
    return None


async def _close_idle(closing: Awaitable[object], single: Any, lock: asyncio.Lock | None) -> None:
    await closing
    if single is not None and (lock is None or not lock.locked()):
        async with lock or asyncio.Lock():
            await _disconnect(single)


def connections_at_once(pool: Any) -> int:
    """Returns how many connections of a pool the callers use at once: half of the pool, and
    `MOST_CONNECTIONS` at most."""
    limit = getattr(pool, "max_connections", None)
    return MOST_CONNECTIONS if not isinstance(limit, int) else max(1, min(MOST_CONNECTIONS, limit // 2))


class PipeCore:
    """The part of `Pipe` and `AsyncPipe` without I/O."""

    def __init__(self, client: Any, is_member: bool) -> None:
        """``is_member``: whether the server is a member of a quorum. Then it is asked for its run id."""
        self.peer = Peer(None)
        # True once another server is the master: the next command connects anew.
        self.must_reconnect = False
        self.connection_pool = client.connection_pool
        self._is_member = is_member
        self._connection: Any = None
        # The token and the connection of each ACQUIRE without a reply.
        self._unanswered: list[tuple[bytes, Any]] = []
        # Whether commands are on their way, or a connection to send them.
        self._waits = False
        # When they were sent, or the server last answered.
        self._alive_at = now()

    def alive_at(self) -> float:
        """Returns the time from which a limit for the server counts. It is the present while the server has
        nothing to answer: a command that is still queued in this process has not been sent."""
        return self._alive_at if self._waits else now()

    def _begin_waiting(self) -> None:
        self._alive_at = now()
        self._waits = True

    def _give_up(self, connection: Any, unanswered: list[Any], failure: BaseException) -> list[Any]:
        """Returns the connections to close after a failure. The connection of an ACQUIRE without a reply
        stays open, unless it is broken or there are too many."""
        self._connection = None
        tokens = [command[2] for command in unanswered if command[0] == "DLOCK.ACQUIRE"]
        if not tokens or isinstance(failure, ConnectionError):
            return [connection]
        self._unanswered += [(token, connection) for token in tokens]
        excess = [old for _, old in self._unanswered[:-MAX_UNANSWERED]]
        del self._unanswered[:-MAX_UNANSWERED]
        return excess


class Pipe(PipeCore):
    """One connection to a server, which carries the commands of the background, many at once.

    If an ACQUIRE gets no reply in time, its connection stays open, and the next commands use a new one. The
    RELEASE of that ACQUIRE is sent over both connections: the server could read a RELEASE over the new
    connection before the ACQUIRE."""

    def execute(self, commands: list[Args]) -> list[Any]:
        """Sends the commands. Returns for each its reply or error."""
        outcomes: list[Any] = []
        connection = None
        self._begin_waiting()
        try:
            if self._unanswered:
                self._release_unanswered(commands)
            connection = self._connected()
            connection.send_packed_command(connection.pack_commands(commands), check_health=False)
            self._alive_at = now()
            while len(outcomes) < len(commands):
                # Every answer is a sign of life: the time limit counts from the answer before.
                outcomes.append(self._read(connection))
                self._alive_at = now()
        except BaseException as why:
            failure = translated(why)
            if connection is not None:
                for each in self._give_up(connection, commands[len(outcomes) :], failure):
                    each.disconnect()
            if not isinstance(failure, Exception):
                raise
            outcomes += [failure] * (len(commands) - len(outcomes))
        finally:
            self._waits = False
        return outcomes

    def disconnect(self) -> None:
        """Closes the connection. Connections with an unanswered ACQUIRE stay open until its RELEASE is
        sent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def close(self) -> None:
        """Closes all connections."""
        self.disconnect()
        for _, connection in self._unanswered:
            connection.disconnect()
        self._unanswered.clear()

    def _read(self, connection: Any) -> Any:
        try:
            return connection.read_response(disconnect_on_error=False)
        except Exception as why:
            failure = translated(why)
            if isinstance(failure, ResponseError):
                return failure
            raise

    def _connected(self) -> Any:
        if self._connection is not None and (self.must_reconnect or self._is_stale(self._connection)):
            self.disconnect()
        self.must_reconnect = False
        if self._connection is None:
            self._connection = _own_connection(self.connection_pool, named=not self._is_member)
            self.peer = Peer(None)
        try:
            # A command would connect, too, but from redis-py 6 on not through the Sentinel.
            self._connection.connect()
            if self._is_member and self.peer.run_id is None:
                # The connection is new, or the user had no right to INFO at the last command but may have it
                # now.
                self.peer = Peer(self._ask_run_id(self._connection))
        except BaseException:
            self.disconnect()
            raise
        return self._connection

    def _is_stale(self, connection: Any) -> bool:
        """Returns whether the server has closed the connection, or has sent data that no request waits
        for."""
        try:
            return bool(connection.can_read())
        except Exception:
            return True

    def _ask_run_id(self, connection: Any) -> str | None:
        """Asks the server for its run id, which differs after a restart. Returns None if the user may not run
        INFO."""
        connection.send_command("INFO", "server", check_health=False)
        try:
            return _protocol.run_id(connection.read_response())
        except Exception as why:
            if isinstance(translated(why), NoPermissionError):
                return None
            raise

    def _release_unanswered(self, commands: list[Args]) -> None:
        releases = {command[2]: command for command in commands if command[0] == "DLOCK.RELEASE"}
        for token, connection in list(self._unanswered):
            if token in releases:
                self._unanswered.remove((token, connection))
                # If this connection is broken, the RELEASE over the new connection must suffice.
                with contextlib.suppress(Exception):
                    connection.send_command(*releases[token], check_health=False)
                if all(other is not connection for _, other in self._unanswered):
                    connection.disconnect()


class AsyncPipe(PipeCore):
    """The same as `Pipe`, for asyncio."""

    async def execute(self, commands: list[Args]) -> list[Any]:
        """Sends the commands. Returns for each its reply or error."""
        outcomes: list[Any] = []
        connection = None
        self._begin_waiting()
        try:
            if self._unanswered:
                await self._release_unanswered(commands)
            connection = await self._connected()
            await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
            self._alive_at = now()
            while len(outcomes) < len(commands):
                # Every answer is a sign of life: the time limit counts from the answer before.
                outcomes.append(await self._read(connection))
                self._alive_at = now()
        except BaseException as why:
            failure = translated(why)
            if connection is not None:
                for each in self._give_up(connection, commands[len(outcomes) :], failure):
                    await _disconnect(each)
            if not isinstance(failure, Exception):
                raise
            outcomes += [failure] * (len(commands) - len(outcomes))
        finally:
            self._waits = False
        return outcomes

    async def disconnect(self) -> None:
        """Closes the connection. Connections with an unanswered ACQUIRE stay open until its RELEASE is
        sent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await _disconnect(connection)

    async def close(self) -> None:
        """Closes all connections."""
        await self.disconnect()
        for _, connection in self._unanswered:
            await _disconnect(connection)
        self._unanswered.clear()

    async def _read(self, connection: Any) -> Any:
        try:
            return await connection.read_response(disconnect_on_error=False)
        except Exception as why:
            failure = translated(why)
            if isinstance(failure, ResponseError):
                return failure
            raise

    async def _connected(self) -> Any:
        if self._connection is not None and (self.must_reconnect or await self._is_stale(self._connection)):
            await self.disconnect()
        self.must_reconnect = False
        if self._connection is None:
            self._connection = _own_async_connection(self.connection_pool, named=not self._is_member)
            self.peer = Peer(None)
        try:
            # A command would connect, too, but from redis-py 6 on not through the Sentinel.
            await self._connection.connect()
            if self._is_member and self.peer.run_id is None:
                # The connection is new, or the user had no right to INFO at the last command but may have it
                # now.
                self.peer = Peer(await self._ask_run_id(self._connection))
        except BaseException:
            await self.disconnect()
            raise
        return self._connection

    async def _is_stale(self, connection: Any) -> bool:
        """Returns whether the server has closed the connection, or has sent data that no request waits
        for."""
        # Versions of redis-py name the method differently.
        can_read = getattr(connection, "can_read", None) or connection.can_read_destructive
        try:
            return bool(await can_read())
        except Exception:
            return True

    async def _ask_run_id(self, connection: Any) -> str | None:
        """Asks the server for its run id, which differs after a restart. Returns None if the user may not run
        INFO."""
        await connection.send_command("INFO", "server", check_health=False)
        try:
            return _protocol.run_id(await connection.read_response())
        except Exception as why:
            if isinstance(translated(why), NoPermissionError):
                return None
            raise

    async def _release_unanswered(self, commands: list[Args]) -> None:
        releases = {command[2]: command for command in commands if command[0] == "DLOCK.RELEASE"}
        for token, connection in list(self._unanswered):
            if token in releases:
                self._unanswered.remove((token, connection))
                # If this connection is broken, the RELEASE over the new connection must suffice.
                with contextlib.suppress(Exception):
                    await connection.send_command(*releases[token], check_health=False)
                if all(other is not connection for _, other in self._unanswered):
                    await _disconnect(connection)


async def _disconnect(connection: Any) -> None:
    # Does not wait until the connection is closed, which a busy server may delay.
    await connection.disconnect(nowait=True)


class Nodes:
    """The client for background work in a cluster, for asyncio. Each node has a connection of its own:
    redis-py's client may delay the requests to all nodes while one node does not answer."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        # By address: the client of the node, and a lock that lets one request at a time use it.
        self._node_clients: dict[Address, tuple[Any, asyncio.Lock]] = {}
        # The nodes that did not answer the last request.
        self._silent: set[Address] = set()

    async def execute_command(self, *args: Any) -> Any:
        try:
            return await self.execute_at(args[1], args)
        except (AskError, TryAgainError, ClusterDownError, RedisClusterException):
            # The cluster is changing, which redis-py's client can handle.
            return await self.cluster.execute_command(*args)

    async def execute_at(self, key: Any, args: tuple[Any, ...]) -> Any:
        return await self._ask(self.cluster.get_node_from_key(key), args)

    async def disconnect(self) -> None:
        for node_client, _ in self._node_clients.values():
            await node_client.connection_pool.disconnect()

    async def _ask(self, node: Any, args: tuple[Any, ...]) -> Any:
        """Sends the command to the node of the key. If the node does not answer, sends the command to another
        node: if the key has moved, the answer is the address of the key's new node."""
        addresses = {_node_address(each) for each in self.cluster.get_nodes()}
        at, asked = _node_address(node), set[Address]()
        if at in self._silent:
            at = random.choice(list(addresses - self._silent) or [at])
        failure: BaseException | None = None
        while at not in asked:
            asked.add(at)
            if at not in self._node_clients:
                options = {**node.connection_kwargs, "host": at[0], "port": at[1]}
                self._node_clients[at] = _own_async(node.connection_class, options), asyncio.Lock()
            node_client, lock = self._node_clients[at]
            try:
                async with lock:
                    answer = await node_client.execute_command(*args)
                self._silent.discard(at)
                return answer
            except Exception as error:
                why = translated(error)
                if isinstance(why, MovedError):
                    failure = failure or why
                    self._silent.discard(at)
                    at = self.cluster.nodes_manager.remap_host_port(why.host or at[0], why.port)
                elif isinstance(why, (ConnectionError, TimeoutError)):
                    failure = why
                    self._silent.add(at)
                    at = random.choice(list(addresses - asked) or [at])
                else:
                    raise why from None
        assert failure is not None
        raise failure


def _node_address(node: Any) -> Address:
    return node.host, int(node.port)
