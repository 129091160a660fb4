"""Odd names and large events, on memory, a folder and a real S3 server: what is accepted works from end to end."""

import asyncio

import pytest

import holdfast
from holdfast.base.errors import Invalid
from holdfast.bus import Context, Event, on
from tests.integration.run_places import Place

pytestmark = pytest.mark.parametrize("place", ["s3"], indirect=True)

NAMES = ["a b", "ünï-日本", "a+b%2F?#&=", "..x", "~'\"", "-n", "x" * 200]
MANY_BYTES = 10 * 1024 * 1024


class OddOrder(Event):
    text: str


class OddEcho(Event):
    text: str


async def test_odd_names_are_names(place: Place) -> None:
    seen: list[tuple[str, str]] = []
    async with holdfast.open(place.uri, settings=place.settings) as hf:
        for name in NAMES:

            @on(OddOrder, id=name, ordered=True)
            async def note(ctx: Context, event: OddOrder) -> None:
                seen.append((ctx.namespace, event.text))
                if ctx.attempt == 1:
                    raise ValueError(event.text)

            bus = hf.bus(name)
            for _ in range(2):
                await bus.publish(OddOrder(text=name), key=name, order_key=name)
            worked = await asyncio.wait_for(hf.run([note], namespace=name, until_idle=True), 60)
            assert (worked.handled, worked.failed) == (1, 1)
            (listed,) = await bus.events()
            assert (listed.status, (await bus.inspect(listed.envelope.id)).claims[0]["handler_id"]) == ("acked", name)
        assert seen == [(name, name) for name in NAMES for _ in range(2)]
        assert sorted(each.namespace for each in await hf.bus().namespaces()) == sorted(NAMES)
        for name in ("", ".", "..", "a/b", "a\0b", "\ud800", "x" * 201):
            with pytest.raises(Invalid, match="namespace"):
                hf.bus(name)


async def test_a_large_event_is_handled_echoed_and_buried(place: Place) -> None:
    text = "é" * (MANY_BYTES // 2)
    sizes: list[int] = []

    @on(OddOrder, id="echo")
    async def echo(ctx: Context, event: OddOrder) -> None:
        sizes.append(len(event.text.encode()))
        ctx.emit(OddEcho(text=event.text))

    @on(OddEcho, id="bury")
    async def bury(ctx: Context, event: OddEcho) -> None:
        raise holdfast.bus.DeadLetter(event.text)

    async with holdfast.open(place.uri, settings=place.settings) as hf:
        await hf.bus().publish(OddOrder(text=text))
        worked = await asyncio.wait_for(hf.run([echo, bury], until_idle=True), 120)
        assert (worked.handled, worked.dead, sizes) == (1, 1, [MANY_BYTES])
        (letter,) = await hf.bus().dead_letters()
        assert len(letter["last_error"]) == 2_000
        assert letter["event"]["payload"]["text"] == text
