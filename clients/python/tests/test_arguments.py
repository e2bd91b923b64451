"""The errors for wrong arguments of public functions: they name what the user has called, and suggest the
right option. For threads and for asyncio."""

from __future__ import annotations

import asyncio
import inspect
import re

import pytest
import redis
import redis.asyncio

import dlock
import dlock.asyncio
import dlock.testing


class Called:
    """A module and its objects, over clients that never connect."""

    def __init__(self, module, clients):
        self.module = module
        self.client = clients.Redis()
        self.lock = module.Lock(self.client, "foo")
        self.locks = module.lock_all(self.client, ["foo"])
        self.redlock = module.Redlock(dlock.Quorum([self.client]), "foo")
        self.leader = module.Leader(self.client, "foo")
        self.operator = module.Operator(self.client)

    def error(self, function, *args, **options):
        """Returns the text of the TypeError of a call, without the name of the module."""

        async def awaited():
            outcome = function(*args, **options)
            return await outcome if inspect.isawaitable(outcome) else outcome

        with pytest.raises(TypeError) as raised:
            asyncio.run(awaited())
        assert str(raised.value).startswith(f"{self.module.__name__}.")
        return str(raised.value)[len(self.module.__name__) + 1 :]


@pytest.fixture(params=[(dlock, redis), (dlock.asyncio, redis.asyncio)], ids=["threads", "asyncio"])
def called(request):
    return Called(*request.param)


@pytest.mark.parametrize(
    ("option", "right"),
    [
        ("tiemout", "timeout"),
        ("ttl", "timeout"),
        ("lease_time", "timeout"),
        ("wait", "blocking_timeout"),
        ("wait_timout", "blocking_timeout"),
        ("share", "shared"),
    ],
)
def test_an_unknown_option_of_a_lock_suggests_the_right_one(called, option, right):
    module, wanted = called.module, f"Lock has no option '{option}': did you mean '{right}'?"
    assert called.error(module.Lock, called.client, "foo", **{option: 1}) == wanted
    assert called.error(module.lock_all, called.client, ["foo"], **{option: 1}) == wanted
    assert called.error(module.lock_path, called.client, "foo", **{option: 1}) == wanted
    assert called.error(module.Leader, called.client, "foo", **{option: 1}) == wanted
    wanted = wanted.replace("Lock", "Redlock", 1)
    assert called.error(module.Redlock, called.redlock.redis, "foo", **{option: 1}) == wanted


@pytest.mark.parametrize(
    ("method", "option", "right"),
    [
        ("lock.acquire", "timeout", "blocking_timeout"),
        ("lock.acquire", "timout", "blocking_timeout"),
        ("lock.acquire", "wait", "blocking_timeout"),
        ("lock.acquire", "blokcing", "blocking"),
        ("lock.upgrade", "timeout", "blocking_timeout"),
        ("lock.extend", "ttl", "additional_time"),
        ("lock.wait_until_free", "blocking_timeout", "timeout"),
        ("redlock.acquire", "timout", "blocking_timeout"),
        ("locks.acquire", "timout", "blocking_timeout"),
        ("locks.acquire", "blokcing", "blocking"),
        ("leader.campaign", "blocking_timeout", "timeout"),
        ("operator.list", "mach", "match"),
        ("operator.log", "key", "name"),
        ("operator.inspect", "key", "name"),
    ],
)
def test_an_unknown_option_of_a_method_suggests_the_right_one(called, method, option, right):
    holder, name = method.split(".")
    found = called.error(getattr(getattr(called, holder), name), **{option: 1})
    assert found == f"{holder.title()}.{name} has no option '{option}': did you mean '{right}'?"


def test_the_error_for_an_option_that_resembles_none_lists_all(called):
    assert called.error(called.lock.acquire, colour=1).endswith("token")
    assert called.error(called.lock.release, colour=1) == "Lock.release has no option 'colour': it has none"
    found = called.error(called.module.fenced, called.client, "gate", 1, colour=1)
    assert found == "fenced has no option 'colour': it has client, gate, fence, *command"


@pytest.mark.parametrize("holder", ["lock", "redlock"])
def test_the_error_for_wrong_arguments_names_the_public_class(called, holder):
    lock, name = getattr(called, holder), holder.title()
    assert called.error(type(lock), lock.redis) == f"{name}: missing a required argument: 'name'"
    assert called.error(lock.adopt) == f"{name}.adopt: missing a required argument: 'token'"
    assert called.error(lock.extend) == f"{name}.extend: missing a required argument: 'additional_time'"
    assert called.error(lock.release, 1) == f"{name}.release: too many positional arguments"
    assert called.error(lock.acquire, 1, 2, 3, 4, 5) == f"{name}.acquire: too many positional arguments"
    assert called.error(called.locks.acquire, 1, 2, 3) == "Locks.acquire: too many positional arguments"


def test_the_errors_of_the_other_classes():
    for make, options, text in (
        (dlock.Quorum, {"node_timout": 1}, "dlock.Quorum has no option 'node_timout': it has members"),
        (dlock.Quorum, {"member": 1}, "dlock.Quorum has no option 'member': did you mean 'members'?"),
        (
            dlock.testing.Server,
            {"opts": "--save"},
            "dlock.testing.Server has no option 'opts': did you mean '*options'?",
        ),
        (
            dlock.testing.Server,
            {"modul": "a.so"},
            "dlock.testing.Server has no option 'modul': did you mean 'module'?",
        ),
    ):
        with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
            make(**options)


def test_the_error_for_fenced_names_the_class_that_has_it():
    with pytest.raises(TypeError, match=r"dlock\.Lock has no option 'fenced': Redlock has it"):
        dlock.Lock(redis.Redis(), "foo", fenced=True)


def test_a_type_error_of_the_function_itself_stays():
    with pytest.raises(TypeError, match=r"dlock\.Lock needs a client"):
        dlock.Lock(3, "foo")


def test_the_methods_for_asyncio_stay_coroutine_functions():
    for name in "acquire", "release", "extend", "upgrade", "adopt", "owned":
        assert inspect.iscoroutinefunction(getattr(dlock.asyncio.Lock, name))
        assert not inspect.iscoroutinefunction(getattr(dlock.Lock, name))
    assert list(inspect.signature(dlock.Lock).parameters)[:3] == ["redis", "name", "timeout"]
