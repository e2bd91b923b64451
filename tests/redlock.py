"""Redlock on servers with dlock; needs redis-py only. Usage: python3 redlock.py redis://host:port ..."""

import secrets
import sys
import time

import redis


class Redlock:
    def __init__(self, urls, timeout=0.5):
        # A short time limit for each server, so that one that is down does not use up the lease.
        self.servers = [
            redis.Redis.from_url(url, socket_timeout=timeout, socket_connect_timeout=timeout) for url in urls
        ]

    def acquire(self, resource, ttl_ms):
        """Returns the token and the seconds for which it stays valid, or None."""
        token = secrets.token_hex(20)  # a new token for each acquisition
        start = time.monotonic()
        votes = [self._ask(server, "DLOCK.ACQUIRE", resource, token, ttl_ms) for server in self.servers]
        drift = ttl_ms / 100 + 2
        valid = (ttl_ms - drift) / 1000 - (time.monotonic() - start)
        if sum(fence is not None for fence in votes) > len(self.servers) // 2 and valid > 0:
            return token, valid
        self.release(resource, token)
        return None

    def release(self, resource, token):
        """Releases on all servers, even those that did not answer ACQUIRE. Returns how many had the hold."""
        return sum(self._ask(server, "DLOCK.RELEASE", resource, token, "ALL") or 0 for server in self.servers)

    @staticmethod
    def _ask(server, *command):
        try:
            return server.execute_command(*command)
        except redis.RedisError:
            return None


if __name__ == "__main__":
    lock = Redlock(sys.argv[1:])
    token, valid = lock.acquire("invoice:42", 10_000) or sys.exit("taken")
    print(f"held for {valid:.0f} s more")
    print("another client gets", lock.acquire("invoice:42", 10_000))
    print("released on", lock.release("invoice:42", token), "servers")
