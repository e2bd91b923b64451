"""The errors of public functions for wrong arguments: they name the public function, and suggest the right
option."""

from __future__ import annotations

import difflib
import functools
import inspect
from typing import Any, Callable, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

# The names of options in other libraries, clients and methods. The first option that the function has is the
# right one.
_LEASE = "timeout", "additional_time"
_LIMIT = "blocking_timeout", "timeout"
OTHER_NAMES = {
    "ttl": _LEASE,
    "expire": _LEASE,
    "lease": _LEASE,
    "lease_time": _LEASE,
    "wait": _LIMIT,
    "max_wait": _LIMIT,
    "wait_timeout": _LIMIT,
    "timeout": ("blocking_timeout", "additional_time"),
    "renew": ("auto_renew",),
    "key": ("name",),
    "pattern": ("match",),
    "client": ("redis", "quorum"),
}


def public(module: str, *classes: type) -> None:
    """Makes the constructors and the public methods of classes check their arguments. ``module``: where the
    user finds them."""
    for each in classes:
        for name, method in inspect.getmembers(each, inspect.isfunction):
            if method.__module__.partition(".")[0] != "dlock":
                continue  # inherited from redis-py
            if name == "__init__":
                setattr(each, name, checking(f"{module}.{each.__name__}")(method))
            elif not name.startswith("_"):
                setattr(each, name, checking(f"{module}.{each.__name__}.{name}")(method))


def checking(called: str) -> Callable[[F], F]:
    """Makes a function check its arguments. ``called``: its name for the user."""

    def decorated(function: F) -> F:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: Any, **options: Any) -> Any:
                try:
                    coroutine = function(*args, **options)
                except TypeError:
                    _check(function, called, args, options)
                    raise
                return await coroutine

            return awaited  # type: ignore[return-value]

        @functools.wraps(function)
        def checked(*args: Any, **options: Any) -> Any:
            try:
                return function(*args, **options)
            except TypeError:
                # If the arguments fit, it is an error of the function itself.
                _check(function, called, args, options)
                raise

        return checked  # type: ignore[return-value]

    return decorated


def _check(function: Any, called: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Raises TypeError if the arguments do not fit the function."""
    signature = inspect.signature(function)
    parameters = [each for each in signature.parameters.values() if each.name != "self"]
    if not any(each.kind == each.VAR_KEYWORD for each in parameters):
        named = [each.name for each in parameters if each.kind != each.VAR_POSITIONAL]
        for name in options:
            if name not in named:
                known = [
                    f"*{each.name}" if each.kind == each.VAR_POSITIONAL else each.name for each in parameters
                ]
                raise TypeError(_unknown_option(called, name, known)) from None
    try:
        signature.bind(*args, **options)
    except TypeError as why:
        raise TypeError(f"{called}: {why}") from None


def _unknown_option(called: str, name: str, known: list[str]) -> str:
    text = f"{called} has no option {name!r}"
    if name == "fenced" and called.endswith(".Lock"):
        return f"{text}: Redlock has it, and each hold of a Lock has a fence"
    # By each name that the user may have meant, the right one.
    right = {other: each for other, names in OTHER_NAMES.items() for each in reversed(names) if each in known}
    right.update({each: each for each in known})
    like = right.get(name) or next((right[each] for each in difflib.get_close_matches(name, right, 1)), None)
    if like is not None:
        return f"{text}: did you mean {like!r}?"
    return f"{text}: it has " + (", ".join(known) or "none")
