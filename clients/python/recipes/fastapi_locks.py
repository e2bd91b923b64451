"""FastAPI: requests that change the same item run one at a time. A request that waits longer than 2 s gets
423 Locked."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import redis.asyncio
from fastapi import Depends, FastAPI, HTTPException

import dlock.asyncio


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    url = os.environ.get("LOCKS", "redis://127.0.0.1:6379")
    async with redis.asyncio.Redis.from_url(url) as app.state.locks:
        yield


app = FastAPI(lifespan=lifespan)


async def item_lock(item: int) -> AsyncIterator[dlock.asyncio.Lock]:
    lock = dlock.asyncio.Lock(app.state.locks, f"item:{item}", timeout=10, blocking_timeout=2)
    # If the client disconnects, the wait is cancelled and leaves the queue.
    if not await lock.acquire():
        raise HTTPException(423, f"item {item} is being changed")
    try:
        yield lock
    finally:
        await lock.release()


@app.post("/items/{item}")
async def change(item: int, lock: Annotated[dlock.asyncio.Lock, Depends(item_lock)]) -> dict[str, Any]:
    # Store the fence with the item, and reject writes with a lower one.
    return {"item": item, "fence": lock.fence}
