"""What each fault does to an exchange. ``faults.py`` names them; this is the only place that acts on them."""

import asyncio
from http import HTTPStatus

from holdfast.sim.proxy.exchange import Exchange, Reply
from holdfast.sim.proxy.faults import (
    CUT,
    FIRST,
    SECOND,
    Answer,
    AnswerAfter,
    ApplyLater,
    CutResponse,
    DelayResponse,
    LoseRequest,
    RaceConditions,
    StaleList,
    Stall,
    StripConditions,
    Twice,
)
from holdfast.sim.proxy.http import Gone, RequestHead
from holdfast.sim.proxy.plan import Choice
from holdfast.sim.proxy.request import CONDITIONS


async def perform(exchange: Exchange, choice: Choice) -> None:
    """Carry out one request under the chosen fault, or under none."""
    match choice.fault:
        case CutResponse(after_bytes):
            await _cut_response(exchange, after_bytes)
        case DelayResponse(ms):
            async with exchange.forward() as response:
                await asyncio.sleep(ms / 1000)
                await exchange.relay(response)
        case Twice(answer, pause_ms):
            await _twice(exchange, answer, pause_ms)
        case Answer(status):
            await exchange.drop_body()
            await exchange.answer(status)
        case AnswerAfter(status):
            await _land(exchange)
            await exchange.answer(status, maybe_landed=True)
        case Stall(landed):
            await _stall(exchange, landed)
        case LoseRequest():
            await exchange.drop_body()
            exchange.cut()
        case ApplyLater(ms, status):
            await _apply_later(exchange, ms, status)
        case _:
            await _as_server(exchange, choice)


async def _as_server(exchange: Exchange, choice: Choice) -> None:
    """The faults of a server that is wrong, and no fault."""
    lists = exchange.around.lists
    match choice.fault:
        case StaleList(lag) if exchange.request.verb == "list":
            await _list(exchange, lag)
        case StripConditions():
            async with exchange.forward(exchange.head.without(*CONDITIONS)) as response:
                await exchange.relay(response)
        case RaceConditions(pause_ms) if exchange.request.condition is not None:
            await _race(exchange, pause_ms * choice.draw)
        case _ if lists.keep and exchange.request.verb == "list":
            await _list(exchange, 0)  # a later listing may be answered with this one
        case _:
            async with exchange.forward() as response:
                await exchange.relay(response)


async def _land(exchange: Exchange) -> None:
    """Let the request take effect, and drop its response."""
    async with exchange.forward() as response:
        async for _ in response.pieces():
            continue


async def _cut_response(exchange: Exchange, after_bytes: int) -> None:
    if after_bytes <= 0:
        await _land(exchange)
        exchange.cut()
        return
    async with exchange.forward() as response:
        exchange.lost()
        left = after_bytes - len(response.head.wire)
        await exchange.client.write(response.head.wire[:after_bytes])
        async for piece in response.pieces():
            if left > 0:
                await exchange.client.write(piece[:left])
                left -= len(piece)
    exchange.cut(gently=True)


async def _twice(exchange: Exchange, answer: str, pause_ms: float) -> None:
    body = await exchange.collect()
    reply = await exchange.deliver(exchange.head, body)
    if pause_ms and answer != SECOND:
        exchange.around.later(_deliver_later(exchange, body, pause_ms))
    else:
        await asyncio.sleep(pause_ms / 1000)
        second = await exchange.deliver(exchange.head, body)
        reply = reply if answer == FIRST else second
    if answer == CUT:
        exchange.cut()
    else:
        await exchange.reply(reply)


async def _stall(exchange: Exchange, landed: bool) -> None:
    if landed:
        await _land(exchange)
    else:
        await exchange.drop_body()
    exchange.lost()
    await exchange.client.until_closed()
    exchange.cut()


async def _apply_later(exchange: Exchange, ms: float, status: int | None) -> None:
    body = await exchange.collect()
    exchange.around.later(_deliver_later(exchange, body, ms))
    if status is None:
        exchange.cut()
    else:
        await exchange.answer(status, maybe_landed=True)


async def _deliver_later(exchange: Exchange, body: bytes, ms: float) -> Reply | None:
    await asyncio.sleep(ms / 1000)
    try:
        return await exchange.deliver(exchange.head, body)
    except Gone:
        return None  # the server is gone, and nobody waits for this answer; the log has it


async def _list(exchange: Exchange, lag: int) -> None:
    lists = exchange.around.lists
    reply = await exchange.deliver(exchange.head, await exchange.collect())
    address = exchange.head.target
    lists.remember(address, reply)
    await exchange.reply(lists.older(address, lag, reply))


async def _race(exchange: Exchange, pause_ms: float) -> None:
    """Check, pause, write: between the first and the last anybody may do the same."""
    body = await exchange.collect()
    head = exchange.head.without(*CONDITIONS)
    looked = await exchange.deliver(_probe(head), b"")
    refusal = _refusal(exchange.head, looked)
    if refusal is not None:
        await exchange.answer(refusal)
        return
    await asyncio.sleep(pause_ms / 1000)
    await exchange.reply(await exchange.deliver(head, body))


def _probe(head: RequestHead) -> RequestHead:
    """A HEAD for the object that ``head`` writes, by the same client."""
    bare = head.without("content-length", "content-md5", "content-type", "transfer-encoding")
    return RequestHead(bare.version, bare.headers, "HEAD", bare.target.partition("?")[0])


def _refusal(head: RequestHead, looked: Reply) -> int | None:
    """The status that S3 gives to a condition that does not hold; None if it holds."""
    status = looked.head.status
    if status not in (HTTPStatus.OK, HTTPStatus.NOT_FOUND):
        return status
    current = looked.head.header("etag") if status == HTTPStatus.OK else None
    wanted, unwanted = head.header("if-match"), head.header("if-none-match")
    if wanted is not None:
        if current is None:
            return HTTPStatus.NOT_FOUND
        if not _same(wanted, current):
            return HTTPStatus.PRECONDITION_FAILED
    if unwanted is not None and current is not None and _same(unwanted, current):
        return HTTPStatus.PRECONDITION_FAILED
    return None


def _same(condition: str, etag: str) -> bool:
    return condition.strip() == "*" or condition.strip().strip('"') == etag.strip('"')
