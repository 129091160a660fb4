"""Letting connections in, one listener's worth.

asyncio does this by itself, but not with strangers in mind. A connection that never begins its TLS handshake counts
nowhere, takes a quarter of a megabyte, and stays for a minute; and when no file descriptor is left, asyncio tries a
thousand times a second and writes down each. Here handshakes have the time of a head and a place among the connections,
and who cannot be let in is left waiting for a moment, and said once.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Sized

from holdfast.base.telemetry import logger

BACKLOG = 1024
PAUSE_S = 1.0
"""When nobody can be let in."""
_GONE = {errno.ECONNABORTED, errno.EPROTO, errno.EPERM}
"""The other side went away before it was let in, or the kernel would not have it."""

_log = logger("server")


class Door:
    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[], asyncio.Protocol],
        *,
        context: ssl.SSLContext | None,
        inside: Sized,
        most: int,
        handshake_s: float,
    ) -> None:
        """``inside`` are the connections that were let in, ``most`` how many they and those with TLS to begin may be;
        without TLS whoever comes is let in, and told. ``context`` may be replaced by another."""
        self._listening = listening
        self._make = make
        self.context = context
        self._inside = inside
        self._most = most
        self._handshake_s = handshake_s
        self._greeting: set[asyncio.Task[None]] = set()
        self._short = False
        listening.listen(BACKLOG)
        self._task = asyncio.get_running_loop().create_task(self._stand(), name="door")

    def close(self) -> None:
        """Nobody more. The socket itself is its owner's."""
        asyncio.get_running_loop().remove_reader(self._listening.fileno())
        for task in (self._task, *self._greeting):
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(self._task, *self._greeting, return_exceptions=True)

    async def _stand(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                arrived, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                if error.errno not in _GONE:
                    await self._wait(error)
                continue
            self._short = False
            if self.context is not None and len(self._greeting) + len(self._inside) >= self._most:
                arrived.close()
                continue
            task = loop.create_task(self._greet(arrived))
            self._greeting.add(task)
            task.add_done_callback(self._greeting.discard)

    async def _greet(self, arrived: socket.socket) -> None:
        limit = None if self.context is None else self._handshake_s
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make, arrived, ssl=self.context, ssl_handshake_timeout=limit
            )
        except OSError as error:  # also what ssl raises
            _log.debug("a connection was not established: %s", error)
            arrived.close()
        except asyncio.CancelledError:
            arrived.close()
            raise

    async def _wait(self, error: OSError) -> None:
        if not self._short:
            self._short = True
            _log.error("no connection can be let in: %s; raise the limit of open files (ulimit -n)", error)
        await asyncio.sleep(PAUSE_S)
