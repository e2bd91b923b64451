"""The clients of the background: they reach the same server, over connections of their own, with short time
limits."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Callable

import redis
import redis.asyncio as aioredis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

# How long the background waits for one answer.
LIMIT = 1.0


def is_cluster(client: Any) -> bool:
    return hasattr(client, "nodes_manager")


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
    pool = getattr(client, "connection_pool", None)
    if pool is None and not subscribes:
        return client
    if pool is None:
        # Messages reach every node of a cluster. Not every version of redis-py has subscriptions in clusters.
        node = client.get_random_node()
        kind, options = node.connection_class, node.connection_kwargs
    else:
        kind, options = pool.connection_class, pool.connection_kwargs
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
