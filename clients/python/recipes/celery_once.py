"""Celery: a task that runs once, even if its message is delivered twice, or a caller sends it twice.

    @app.task(base=Once, bind=True, acks_late=True)
    def charge(self, invoice):
        write(invoice, fence=self.request.fence)

The lock keeps two workers from running the task with the same arguments at the same time. It is renewed while
the task runs. If the worker dies, the lock is free within 30 s, and the broker delivers the message again. A
mark records that the task has run. A guarded write (DLOCK.GUARD) sets the mark, and fails if the worker was
stopped for longer than its lease.

If the worker dies between the work and the mark, the work is done again. So write with the fence and reject
lower ones, or make the work and the mark one transaction of your database.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

import celery
import redis

import dlock

client = redis.Redis.from_url(os.environ.get("LOCKS", "redis://127.0.0.1:6379"))
# Time for which a mark stays, in seconds.
MARK_TTL = 7 * 24 * 3600


class Once(celery.Task):
    abstract = True
    max_retries = None
    default_retry_delay = 10

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        call = json.dumps([self.name, arguments, options], sort_keys=True, default=str)
        # The braces around the digest are part of the name. A cluster stores keys with the same text in
        # braces on one node: here, the keys of the lock and of the mark.
        name = f"task:{{{hashlib.sha256(call.encode()).hexdigest()}}}"
        mark = name + ":done"
        lock = dlock.Lock(client, name)
        if not lock.acquire(blocking=False):
            # Another worker runs the task, and may still fail.
            raise self.retry()
        try:
            if client.exists(mark):
                return None
            self.request.fence = lock.fence
            result = self.run(*arguments, **options)
            # Fails with NOTHELD if the lock was lost: another worker may be running the task.
            guard = ("DLOCK.GUARD", name, lock.local.token)
            client.execute_command(*guard, "SET", mark, 1, "EX", MARK_TTL, keys=[name, mark])
            return result
        finally:
            lock.release()
