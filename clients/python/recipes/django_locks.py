"""Django: `cache.lock()` of django-redis as a lock of dlock.

    CACHES = {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": "redis://127.0.0.1:6379/0",
            "OPTIONS": {"REDIS_CLIENT_CLASS": "myproject.django_locks.Redis"},
        }
    }

    with cache.lock("report", timeout=60):
        ...

This changes only the method `lock()` of the cache, and of the client that `get_redis_connection()` returns.
"""

from __future__ import annotations

from typing import Any

import redis

import dlock


class Redis(redis.Redis):
    def lock(self, *arguments: Any, **options: Any) -> Any:
        options.setdefault("lock_class", dlock.Lock)
        return super().lock(*arguments, **options)
