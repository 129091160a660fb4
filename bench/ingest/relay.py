"""``python -m bench.ingest.relay ENDPOINT|FOLDER``: the least that can stand between senders and a store.

A server in a process of its own, on the loop that a collector has, that takes a request, makes the two PUTs that a
collector would make, and answers. Under which keys the request itself says; on a folder it writes what the floor
writes, with as many threads. It looks into nothing: no token, no frame, no hash, no limits, no live state. What it
loses against the floor is the price of receiving at all, on a machine that senders, server and store share; only the
rest is the collector's own.
"""

import asyncio
import json
import os
import re
import sys
from pathlib import Path

from bench.ingest.sides import MANIFEST_BYTES, Put, creates, durable_files

_ANSWER = b'HTTP/1.1 200 OK\r\ncontent-length: 19\r\n\r\n{"duplicate":false}'
_HEAD = re.compile(rb"x-keys: (\S+) (\S+)\r\ncontent-length: (\d+)\r\n\r\n")


def request(blob: str, manifest: str, frame: bytes) -> bytes:
    head = f"POST / HTTP/1.1\r\nhost: relay\r\nx-keys: {blob} {manifest}\r\ncontent-length: {len(frame)}\r\n\r\n"
    return head.encode() + frame


class _Relay(asyncio.Protocol):
    """One connection: request after request, none before the one before it is answered."""

    def __init__(self, put: Put) -> None:
        self._put = put
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._held = self._held + data if self._held else data
        head = _HEAD.search(self._held)
        if head is None or len(self._held) < head.end() + int(head[3]):
            return
        body, self._held = self._held[head.end() :], b""
        self._task = asyncio.ensure_future(self._write(head[1].decode(), head[2].decode(), body))

    async def _write(self, blob: str, manifest: str, body: bytes) -> None:
        await self._put(blob, body)
        await self._put(manifest, b"0" * MANIFEST_BYTES)
        self._transport.write(_ANSWER)  # type: ignore[attr-defined]  # of a stream


async def serve(put: Put) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: _Relay(put), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print(json.dumps({"url": f"http://127.0.0.1:{port}"}), flush=True)
    await server.serve_forever()


def main(place: str) -> None:
    if place.startswith("http:"):
        asyncio.run(serve(creates(place, f"relay-{os.getpid()}")))
    else:
        with durable_files(Path(place)) as put:
            asyncio.run(serve(put))


if __name__ == "__main__":
    main(sys.argv[1])
