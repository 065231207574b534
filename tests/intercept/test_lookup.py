"""Looking names up: once for all who ask, and never for long."""

import asyncio
import socket
import threading

import pytest

from sidecar.intercept import lookup
from sidecar.intercept.lookup import Lookup


async def test_addresses_come_from_the_resolver_and_a_name_without_any_has_none() -> None:
    found = await Lookup().addresses(["localhost", "no.such.invalid"])
    assert "127.0.0.1" in found["localhost"]
    assert found["no.such.invalid"] == frozenset()
    assert await Lookup().addresses([]) == {}


async def test_a_name_is_asked_for_once_until_its_answer_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def getaddrinfo(name: str, *_: object, **__: object) -> list[object]:
        asked.append(name)
        return [(None, None, None, "", ("fe80::0:1%eth0", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    names = Lookup()
    for _ in range(2):
        assert await names.addresses(["a"]) == {"a": frozenset({"fe80::1"})}
    assert asked == ["a"]
    monkeypatch.setattr(lookup, "SECONDS", -1.0)
    await names.addresses(["a"])
    assert asked == ["a", "a"]


async def test_a_resolver_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()

    def getaddrinfo(name: str, *_: object, **__: object) -> list[object]:
        answer.wait(20)
        return [(None, None, None, "", ("10.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(lookup, "WAIT", 0.01)
    names = Lookup()
    many = [f"h{number}" for number in range(50)]
    assert set((await names.addresses(many)).values()) == {frozenset()}
    assert await asyncio.to_thread(lambda: 1) == 1, "the threads that wait are not the loop's own"
    answer.set()
    monkeypatch.setattr(lookup, "WAIT", 20.0)
    assert set((await names.addresses(many)).values()) == {frozenset({"10.0.0.1"})}
