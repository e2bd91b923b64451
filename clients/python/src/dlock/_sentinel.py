"""Leaves a former master behind Sentinel. After a planned failover it stays a master for about 10 s, until
the sentinels demote it. What it confirms meanwhile is lost."""

from __future__ import annotations

import math
from typing import Any, Callable

from redis.exceptions import RedisError

from ._clock import now
from ._hold import logger
from ._protocol import Steps
from ._steps import TICK, FindMaster, LeaveMaster, Over


class Lookout:
    """A task of the background that asks the sentinels of a client for the master, once a second. If they
    name another one, the connections of the client to the former one are closed."""

    def __init__(self, client: Any, is_used: Callable[[], bool]) -> None:
        """``is_used``: returns whether the background still has work for the client."""
        self.changed: Callable[[], object] | None = None
        self._client = client
        self._is_used = is_used
        # The master of the last answer.
        self._master: Any = client.connection_pool.master_address
        self._next_look_at = now() + TICK
        self._is_over = False

    # The methods of a `Task`.

    def finished(self) -> bool:
        self._is_over = self._is_over or not self._is_used()
        return self._is_over

    def wake_at(self) -> float:
        return self._next_look_at

    def wake(self) -> Steps:
        self._next_look_at = math.inf
        return self._look()

    def steps_ended(self) -> None:
        self._next_look_at = now() + TICK

    def _look(self) -> Steps:
        try:
            yield from self._choose_sentinel()
            named = yield FindMaster(self._client)
        except (RedisError, OSError) as why:
            logger.debug("no sentinel names the master: %s", why)
            return
        former, self._master = self._master, named
        if former not in (None, named):
            yield LeaveMaster(self._client)

    def _choose_sentinel(self) -> Steps:
        """Puts a sentinel first that carries out no failover. redis-py asks the first one that answers, and
        until all replicas follow the new master, SENTINEL MASTERS of the other one names the former."""
        pool = self._client.connection_pool
        sentinels = getattr(pool.sentinel_manager, "sentinels", [])
        for number, sentinel in enumerate(list(sentinels)):
            try:
                masters = yield Over(sentinel, ("SENTINEL MASTERS",))
            except (RedisError, OSError) as why:
                logger.debug("a sentinel does not answer: %s", why)
                continue
            if "failover_in_progress" not in masters.get(pool.service_name, {}).get("flags", ""):
                sentinels[0], sentinels[number] = sentinels[number], sentinels[0]
                return
