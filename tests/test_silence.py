"""One timer tells a silence from talk."""

from __future__ import annotations

import asyncio

from sidecar.silence import Silence
from tests.support.waiting import LIVENESS

SHORT = 0.05


async def test_a_silence_is_told_again_and_again_until_it_is_closed() -> None:
    told, often = 0, asyncio.Event()

    def count() -> None:
        nonlocal told
        told += 1
        if told == 3:
            often.set()

    silence = Silence(SHORT, count)
    await asyncio.wait_for(often.wait(), LIVENESS)
    silence.close()
    await asyncio.sleep(3 * SHORT)
    assert told == 3


async def test_a_word_puts_the_silence_off() -> None:
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    begun = loop.time()
    silence = Silence(SHORT, told.set)
    while loop.time() - begun < 3 * SHORT:
        silence.heard()
        assert silence.since(SHORT)
        await asyncio.sleep(0)
    last = loop.time()
    assert not told.is_set()
    await asyncio.wait_for(told.wait(), LIVENESS)
    assert loop.time() - last > SHORT / 2
    assert not silence.since(SHORT / 2)
    silence.close()
