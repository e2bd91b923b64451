"""The observer of acquisitions and holds, which `otel.py` sets. Without one, each costs a comparison."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """Its methods are called in the thread or task of the lock, or in the background, and must not block."""

    def acquired(self, key: bytes, waited: float, fence: int | None) -> None: ...

    def not_acquired(self, key: bytes, waited: float, why: BaseException | None) -> None:
        """``why``: None if another client has the lock."""

    def released(self, held: float) -> None: ...

    def lost(self) -> None: ...


observer: Observer | None = None
