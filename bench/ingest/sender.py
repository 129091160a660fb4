"""A sender that costs little, so that collectors are measured and not their clients: requests built as bytes, one
connection per sender, answers looked at just enough to know that the batch was accepted as new."""

import asyncio
import time
from collections.abc import Iterable, Iterator
from urllib.parse import urlsplit

from bench.ingest.batches import AGENT


def request(frame: bytes, token: str, seq_end: int) -> bytes:
    head = (
        "POST /ingest/v1/batch HTTP/1.1\r\nhost: collector\r\n"
        f"authorization: Bearer {token}\r\nx-lightmetrics-agent: {AGENT}\r\n"
        f"x-lightmetrics-seq-start: 0\r\nx-lightmetrics-seq-end: {seq_end}\r\ncontent-length: {len(frame)}\r\n\r\n"
    )
    return head.encode() + frame


async def send_all(url: str, requests: Iterable[bytes], senders: int) -> list[float]:
    """Send every request, ``senders`` at a time; the seconds that each took."""
    place = urlsplit(url)
    waiting = iter(requests)
    took: list[float] = []

    async def sender(mine: Iterator[bytes]) -> None:
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        try:
            for each in mine:
                began = time.perf_counter()
                writer.write(each)
                await _accepted(reader)
                took.append(time.perf_counter() - began)
        finally:
            writer.close()
            await writer.wait_closed()

    await asyncio.gather(*(sender(waiting) for _ in range(senders)))
    return took


async def _accepted(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    lower = head.lower()
    at = lower.index(b"content-length:") + len(b"content-length:")
    body = await reader.readexactly(int(lower[at : lower.index(b"\r\n", at)]))
    if not head.startswith(b"HTTP/1.1 200") or b'"duplicate":false' not in body:
        raise RuntimeError(f"not accepted as new: {head!r} {body!r}")
