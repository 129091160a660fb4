"""The S3 server with a counter at its door: ``python -m bench.ontology_write.counted``, in a process of its own.

Every request is counted by bucket and method, with the bytes of its body and of its answer, for all senders; so clients
that do not count their requests are measured as those that do. ``GET /-/counts`` tells; ``PUT /-/delay/{ms}`` makes the
server answer so much later from then on, as a far one does.
"""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from hypercorn.asyncio import serve
from hypercorn.config import Config
from ministack.app import app

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
OURS = "/-/"


class CountedServer:
    def __init__(self) -> None:
        self._delay_s = 0.0
        self._counts: dict[str, Counter[str]] = {}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
        elif scope["path"].startswith(OURS):
            await _answer(send, self._answered(scope["path"].removeprefix(OURS)))
        else:
            await self._passed_on(scope, receive, send)

    def _answered(self, path: str) -> bytes:
        if path.startswith("delay/"):
            self._delay_s = int(path.removeprefix("delay/")) / 1000
        return json.dumps(self._counts).encode()

    async def _passed_on(self, scope: Message, receive: Receive, send: Send) -> None:
        counts = self._counts.setdefault(scope["path"].lstrip("/").partition("/")[0], Counter())
        counts[scope["method"]] += 1

        async def received() -> Message:
            message = await receive()
            counts["received"] += len(message.get("body", b""))
            return message

        async def sent(message: Message) -> None:
            counts["sent"] += len(message.get("body", b""))
            await send(message)

        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        await app(scope, received, sent)


async def _answer(send: Send, body: bytes) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    config = Config()
    config.bind = [f"{os.environ['BIND_HOST']}:{os.environ['GATEWAY_PORT']}"]
    config.keep_alive_timeout = 75
    config.loglevel = "WARNING"
    config.backlog = 256
    asyncio.run(serve(CountedServer(), config))  # type: ignore[arg-type]  # an application, typed by its shape


if __name__ == "__main__":
    main()
