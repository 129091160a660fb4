"""The fault proxy: a listener on loopback between S3 clients and one real S3 server.

    async with FaultProxy("http://127.0.0.1:9000", lossy(seed=7)) as proxy:
        ...                     # clients use proxy.endpoint
        proxy.counts.served("put", 200)

It runs on the loop that enters it; ``in_thread`` gives it a loop of its own, for blocking tests. Closing it cuts every
connection and drops what was to be applied later; ``settle`` waits for that first. A failure of the proxy itself is
raised when it is closed, never passed off as a fault.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from types import TracebackType
from typing import Any, Self

from holdfast.base.errors import Invalid
from holdfast.base.portal import Portal
from holdfast.sim.proxy.exchange import Exchange, Lists, Surroundings, error_reply
from holdfast.sim.proxy.http import CLIENT, HEAD_BYTES, Gone, Malformed, RequestHead, Wire
from holdfast.sim.proxy.log import Counts, Log, Record
from holdfast.sim.proxy.perform import perform
from holdfast.sim.proxy.plan import Chooser, Plan
from holdfast.sim.proxy.request import classify
from holdfast.sim.proxy.server import Server


class FaultProxy:
    """``port`` 0 picks a free one. ``watch`` is called with every record when its exchange has ended."""

    def __init__(
        self,
        upstream: str,
        plan: Plan | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        keep_records: int = 100_000,
        watch: Callable[[Record], None] | None = None,
    ) -> None:
        self._server = Server(upstream)
        self._log = Log(keep_records)
        self._host = host
        self._port = port
        self._watch = watch
        self._listener: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._late: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self.use(plan or Plan())

    def use(self, plan: Plan) -> None:
        """Follow another plan from the next request on, with fresh counters. The log goes on."""
        self._chooser = Chooser(plan)
        self._around = Surroundings(self._server, self._log, Lists(self._chooser.lists_to_keep), self._later)

    @property
    def plan(self) -> Plan:
        return self._chooser.plan

    @property
    def endpoint(self) -> str:
        """Where clients connect: ``http://127.0.0.1:port``."""
        if not self._port:
            raise Invalid("the proxy has not been started", remedy="enter it with async with")
        return f"http://{self._host}:{self._port}"

    @property
    def upstream(self) -> str:
        return self._server.address

    @property
    def log(self) -> list[Record]:
        """The newest records, oldest first."""
        return list(self._log.records)

    @property
    def counts(self) -> Counts:
        return self._log.counts

    async def settle(self) -> None:
        """Wait until everything that was to be applied later has been."""
        while self._late:
            await asyncio.gather(*self._late, return_exceptions=True)

    @asynccontextmanager
    async def unreachable(self) -> AsyncIterator[None]:
        """Nobody listens inside the block, and every open connection is cut: clients meet a refused connection."""
        await self._stop_listening()
        try:
            yield
        finally:
            await self._listen()

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop_listening()
        for task in self._late:
            task.cancel()
        await asyncio.gather(*self._late, return_exceptions=True)
        self._server.close()
        if self._failure is not None and error is None:
            raise self._failure

    async def _listen(self) -> None:
        self._listener = await asyncio.start_server(self._accept, self._host, self._port, limit=HEAD_BYTES)
        self._port = self._listener.sockets[0].getsockname()[1]

    async def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is None:
            return
        listener.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await listener.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = Wire(CLIENT, reader, writer)
        if self._listener is None:  # the kernel had accepted it before we closed
            client.cut()
            return
        self.counts.connections += 1
        if self._chooser.refuses_connection():
            self.counts.faults["refuse-connection"] += 1
            client.cut()
            return
        task = self._spawn(self._serve(client, self.counts.connections), self._connections)
        # Not in the task's own ``finally``: a task that is cancelled before it began runs none.
        task.add_done_callback(lambda _: None if client.closed else client.cut())

    async def _serve(self, client: Wire, connection: int) -> None:
        """All requests of one connection, one after the other."""
        try:
            while (head := await client.request_head()) is not None:
                if not await self._exchange(client, connection, head):
                    break
            client.close()
        except Malformed:
            refusal = error_reply(400, "GET")
            with suppress(Gone):
                await client.write(refusal.head.wire + refusal.body)
            client.close()
        except Gone:
            client.cut()

    async def _exchange(self, client: Wire, connection: int, head: RequestHead) -> bool:
        """One request; whether the connection can carry another."""
        request = classify(head)
        choice = self._chooser.choose(request)
        record = self._log.asked(connection, request, choice.fault.kind if choice.fault is not None else None)
        exchange = Exchange(client, head, record, self._around)
        try:
            await perform(exchange, choice)
        except (Gone, Malformed):
            exchange.cut()  # no fault of a plan: one of the peers failed
        finally:
            if self._watch is not None:
                self._watch(record)
        return exchange.reusable

    def _later(self, work: Awaitable[object]) -> None:
        self._spawn(_finish(work), self._late)

    def _spawn(self, work: Coroutine[Any, Any, None], home: set[asyncio.Task[None]]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        home.add(task)

        def ended(done: asyncio.Task[None]) -> None:
            home.discard(done)
            if not done.cancelled() and (failure := done.exception()) is not None and self._failure is None:
                self._failure = failure

        task.add_done_callback(ended)
        return task


async def _finish(work: Awaitable[object]) -> None:
    await work


@contextmanager
def in_thread(upstream: str, plan: Plan | None = None, **options: Any) -> Iterator[FaultProxy]:
    """A running proxy for blocking code. Its loop runs in a thread; ``use``, ``log`` and ``counts`` work from here."""
    with Portal() as portal:
        proxy = FaultProxy(upstream, plan, **options)
        portal.enter(proxy)
        yield proxy
