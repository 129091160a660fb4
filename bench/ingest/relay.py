"""``python -m bench.ingest.relay ENDPOINT``: the least that can stand between senders and a store.

A server in a process of its own that takes a request, makes the two PUTs that a collector would make, and answers. It
looks into nothing: no token, no frame, no hash, no limits, no live state. What it loses against the floor is the price
of receiving at all, on a machine that senders, server and store share; only the rest is the collector's own.
"""

import asyncio
import json
import os
import sys
from itertools import count

import obstore
from obstore.store import S3Store

from bench.ingest.sides import MANIFEST_BYTES, bare_store

_ANSWER = b'HTTP/1.1 200 OK\r\ncontent-length: 19\r\n\r\n{"duplicate":false}'
_LENGTH = b"content-length: "


class _Relay(asyncio.Protocol):
    """One connection: request after request, none before the one before it is answered."""

    def __init__(self, store: S3Store, numbers: "count[int]") -> None:
        self._store = store
        self._numbers = numbers
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._held = self._held + data if self._held else data
        end = self._held.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        at = self._held.index(_LENGTH) + len(_LENGTH)
        if len(self._held) < end + int(self._held[at : self._held.index(b"\r\n", at)]):
            return
        body, self._held = self._held[end:], b""
        self._task = asyncio.ensure_future(self._write(body))

    async def _write(self, body: bytes) -> None:
        number = next(self._numbers)
        await obstore.put_async(self._store, f"blobs/{number:032d}", body, mode="create", use_multipart=False)
        small = b"0" * MANIFEST_BYTES
        await obstore.put_async(self._store, f"manifests/{number:032d}", small, mode="create", use_multipart=False)
        self._transport.write(_ANSWER)  # type: ignore[attr-defined]  # of a stream


async def main(endpoint: str) -> None:
    store, numbers = bare_store(endpoint, f"relay-{os.getpid()}"), count()
    server = await asyncio.get_running_loop().create_server(lambda: _Relay(store, numbers), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print(json.dumps({"ingest": f"http://127.0.0.1:{port}"}), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
