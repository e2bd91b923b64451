"""The clients of the background: they reach the same server, over connections of their own, with short time
limits."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Mapping
from typing import Any, Callable

import redis
import redis.asyncio as aioredis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    ClusterDownError,
    ConnectionError,
    MovedError,
    RedisClusterException,
    TimeoutError,
    TryAgainError,
)
from redis.retry import Retry

# How long the background waits for one answer.
LIMIT = 1.0

Address = tuple[str, int]


def is_cluster(client: Any) -> bool:
    return hasattr(client, "nodes_manager")


def encoder(client: Any) -> Any:
    return client.get_encoder() if hasattr(client, "get_encoder") else client.connection_pool.get_encoder()


def own_client(client: Any, connected: Callable[[Any], None] | None = None) -> Any:
    """A client to the same server, with a pool of its own. Sentinel's connections ask their pool for the
    master, and go on asking it. Each connection is told to `connected`."""
    pool = getattr(client, "connection_pool", None)
    if pool is None:
        # A cluster, where messages reach every node; a quorum, whose members have clients of their own.
        return client
    options = pool.connection_kwargs
    own_options = {**options, **_limits(options), "retry": Retry(NoBackoff(), 0)}
    if connected is not None:
        greet = options.get("redis_connect_func") or pool.connection_class.on_connect

        def opened(connection: Any) -> None:
            greet(connection)
            connected(connection)

        own_options["redis_connect_func"] = opened
    own = redis.ConnectionPool(connection_class=pool.connection_class, **own_options)
    return redis.Redis(connection_pool=own)


def own_async_client(client: Any, *, subscribes: bool = False, connected: Any = None) -> Any:
    """The same for asyncio."""
    if is_cluster(client):
        # Messages reach every node of a cluster. Not every version of redis-py has subscriptions in clusters.
        node = client.get_random_node()
        return _own_async(node.connection_class, node.connection_kwargs) if subscribes else Nodes(client)
    pool = getattr(client, "connection_pool", None)
    return client if pool is None else _own_async(pool.connection_class, pool.connection_kwargs, connected)


def _own_async(kind: Any, options: Mapping[str, Any], connected: Any = None) -> Any:
    own_options = {**options, **_limits(options), "retry": AsyncRetry(NoBackoff(), 0)}
    if connected is not None:
        greet = options.get("redis_connect_func") or kind.on_connect

        async def opened(connection: Any) -> None:
            greeted = greet(connection)
            if inspect.isawaitable(greeted):
                await greeted
            await connected(connection)

        own_options["redis_connect_func"] = opened
    own = aioredis.ConnectionPool(connection_class=kind, **own_options)
    return aioredis.Redis(connection_pool=own)


def _limits(options: Mapping[str, Any]) -> dict[str, float]:
    """The time limits of the background: the client's own, but short."""
    names = "socket_timeout", "socket_connect_timeout"
    return {name: min(options.get(name) or LIMIT, LIMIT) for name in names}


class Nodes:
    """A cluster, for renewals from asyncio: each node over a connection of its own. redis-py's client may let
    everybody wait while it finds out what has become of a node that does not answer."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        # With the lock of those who use it: one at a time.
        self._owns: dict[Address, tuple[Any, asyncio.Lock]] = {}
        # Those that did not answer when they were last asked.
        self._silent: set[Address] = set()
        # As clients have it: it is disconnected.
        self.connection_pool = self

    async def execute_command(self, *args: Any) -> Any:
        try:
            return await self._ask(self._cluster.get_node_from_key(args[1]), args)
        except (AskError, TryAgainError, ClusterDownError, RedisClusterException):
            return await self._cluster.execute_command(*args)

    async def _ask(self, node: Any, args: tuple[Any, ...]) -> Any:
        """Of a node that does not answer, another one knows whether its keys have moved."""
        everybody = {_address(each) for each in self._cluster.get_nodes()}
        at, asked = _address(node), set[Address]()
        if at in self._silent:
            at = random.choice(list(everybody - self._silent) or [at])
        failure: Exception | None = None
        while at not in asked:
            asked.add(at)
            if at not in self._owns:
                options = {**node.connection_kwargs, "host": at[0], "port": at[1]}
                self._owns[at] = _own_async(node.connection_class, options), asyncio.Lock()
            own, turn = self._owns[at]
            try:
                async with turn:
                    answer = await own.execute_command(*args)
                self._silent.discard(at)
                return answer
            except MovedError as why:
                failure = failure or why
                self._silent.discard(at)
                at = self._cluster.nodes_manager.remap_host_port(why.host or at[0], why.port)
            except (ConnectionError, TimeoutError) as why:
                failure = why
                self._silent.add(at)
                at = random.choice(list(everybody - asked) or [at])
        assert failure is not None
        raise failure

    async def disconnect(self) -> None:
        for own, _ in self._owns.values():
            await own.connection_pool.disconnect()


def _address(node: Any) -> Address:
    return node.host, int(node.port)
