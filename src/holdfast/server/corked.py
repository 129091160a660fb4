"""A transport that sends the head of an answer together with its body: one packet and one system call, not two.

A first small write waits for the next one, at most until the loop turns. Never more than one waits, so whoever writes
much is held up by the transport below as ever.
"""

import asyncio
from typing import Any

MOST = 4 << 10
"""Bytes that may wait: the head of an answer."""


class Corked:
    """Everything but writing and ending is the transport's own."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._waiting = b""
        self._turns = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not data:
            return
        if self._waiting or len(data) > MOST:
            self._transport.write(self._waiting + data)
            self._waiting = b""
            return
        self._waiting = data
        if not self._turns:
            self._turns = True
            self._loop.call_soon(self._turned)

    def push(self, data: bytes) -> None:
        """A whole answer: nothing more is to come, so it does not wait."""
        self._transport.write(self._waiting + data)
        self._waiting = b""

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _turned(self) -> None:
        self._turns = False
        self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._transport.write(self._waiting)
            self._waiting = b""
