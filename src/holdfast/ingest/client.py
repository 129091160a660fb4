"""Telemetry from an application: records in, accepted batches out.

    async with Client("https://collectors.example", agent_id="web-1", token=token) as client:
        await client.send([Gauge("queue_depth", 12.0, now_ns)])

A client is one boot: it draws a boot id and numbers records from 0, so an agent id belongs to one client at a time. A
batch is cut and encoded once; every try sends the same bytes, to this collector or another, so that however often it is
sent it is accepted once. Records are on no disk: what was not accepted when the process ends is gone. (An agent with a
queue on disk is for that.)

What ``send`` has taken stays in the client's hand (``pending``) until a collector has accepted it or an error has told
that none ever will, however the call ends: by an error, by a time-out of the application, by cancellation. ``resend``,
or the next ``send``, sends it again under the same identities, before anything new.

Errors: ``Unfinished`` for records that were taken: ``Undelivered`` after the last try, ``BatchDenied`` for tokens,
``BatchConflict`` if other bytes were accepted under this identity, ``BatchRejected`` for what no try can mend; the
latter two hand over the batch. ``Invalid`` for what is no record or is too large, and ``PendingFull``: of such a call
nothing was taken. What an answer means is decided in ``transport``, for agents and clients alike; a token in a file is
read again when it changes.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from holdfast.base.errors import Invalid
from holdfast.base.ids import Ambient
from holdfast.ingest.agent.sender import MISNAMED, UNTRUSTED, Busy, Conflict, Denied, Rejected, Silent, Taken
from holdfast.ingest.cut import cut
from holdfast.ingest.frame import ANY_SIZE, Identity, Limits, inspect
from holdfast.ingest.identity import check_sender
from holdfast.ingest.outcome import (
    BatchConflict,
    BatchDenied,
    BatchRejected,
    Delivered,
    PendingFull,
    Receipt,
    Undelivered,
    Unfinished,
)
from holdfast.ingest.records import Alert, Counter, Gauge, Histogram, Log, Record
from holdfast.ingest.tokenfile import TokenSource, check_token
from holdfast.ingest.transport import PATH, HttpTransport
from holdfast.ingest.trust import check_url, trusting

LONGEST_WAIT_S = 30.0
BATCH_BYTES = Limits().frame_bytes
PENDING_BYTES = 64 << 20


_HINTS = {
    UNTRUSTED: " (verify= names the file of the CA to trust)",
    MISNAMED: " (name it in the URL as its certificate does)",
}


@dataclass(slots=True)
class _Held:
    """A batch that was cut and is not known to be accepted."""

    identity: Identity
    frame: bytes
    flying: bool = False
    """A call is sending it."""
    left: bool = False
    """A call has ended without delivering it."""
    refusal: BatchConflict | BatchRejected | None = None
    """Nobody will ever take it. It is sent no more, and the next call that ends hands it over."""


class Client:
    def __init__(
        self,
        url: str | Sequence[str],
        *,
        agent_id: str,
        token: str | None = None,
        token_file: Path | str | None = None,
        boot_id: str | None = None,
        seq_start: int = 0,
        batch_records: int = 50_000,
        batch_bytes: int = BATCH_BYTES,
        pending_bytes: int = PENDING_BYTES,
        tries: int = 10,
        backoff_ms: int = 100,
        timeout_s: float = 30.0,
        verify: ssl.SSLContext | Path | str | bool = True,
        ambient: Ambient | None = None,
    ) -> None:
        """``url``: a collector, or several to fail over between. ``verify``: the certificates by which it is trusted,
        a file of them in PEM or an SSL context; True for the usual ones. ``batch_bytes``: the most that one request
        carries. ``pending_bytes``: no more records are taken while so much is left that cannot be delivered."""
        urls = [url] if isinstance(url, str) else list(url)
        if not urls or min(tries, batch_records, batch_bytes, pending_bytes) < 1:
            raise Invalid("a client needs a collector's URL, at least one try, and records in its batches")
        self._ambient = ambient if ambient is not None else Ambient.system()
        self.agent_id = agent_id
        self.boot_id = boot_id if boot_id is not None else self._ambient.ids.unique()
        self.next_seq = seq_start
        check_sender(agent_id)
        Identity(agent_id, self.boot_id, seq_start, seq_start)
        self._urls = [check_url(each) for each in urls]
        self._at = 0
        self._token = _token(token, token_file)
        self._batch_records = batch_records
        self._limits = Limits(frame_bytes=batch_bytes)
        self._pending_bytes = pending_bytes
        self._held: dict[Identity, _Held] = {}
        self._tries = tries
        self._backoff_s = backoff_ms / 1000
        self._timeout_s = timeout_s
        self._verify = trusting(Path(verify), "verify=") if isinstance(verify, Path | str) else verify
        self._http: httpx.AsyncClient | None = None

    @property
    def pending(self) -> tuple[bytes, ...]:
        """The frames of all batches that were cut and are not known to be accepted, in the order of their numbers."""
        return tuple(each.frame for each in self._held.values())

    async def send(self, records: Record | Iterable[Record]) -> Receipt:
        """Take the records, number them and cut them into batches; send what was left before, and then these, one after
        the other. ``next_seq`` moves when they are taken: if no other call runs, that tells of one that was cancelled
        whether it had."""
        wanted = [records] if isinstance(records, Gauge | Counter | Histogram | Log | Alert) else list(records)
        done = await self._make_room() if wanted else []
        # Nothing is awaited from here until they are held.
        self._take(wanted)
        return await self._send_held(done)

    async def resend(self) -> Receipt:
        """Send what is ``pending``, the same bytes as before; what another call is just sending is left to that."""
        return await self._send_held([])

    async def send_frame(self, frame: bytes) -> Delivered:
        """Send a frame as it is, such as one of ``Unfinished.frames``, those of another client included."""
        identity = inspect(frame, ANY_SIZE).identity
        async with self._session() as http:
            delivered = await self._deliver(http, identity, frame)
            held = self._held.get(identity)
            if held is not None and held.frame == frame:
                del self._held[identity]
            return delivered

    def _take(self, records: list[Record]) -> None:
        """All of them or none."""
        made = cut(
            self.agent_id,
            self.boot_id,
            records,
            self.next_seq,
            most_records=self._batch_records,
            limits=self._limits,
        )
        self._held |= {identity: _Held(identity, frame) for identity, frame in made}
        self.next_seq += len(records)

    async def _make_room(self) -> list[Delivered]:
        """If too much is left, what could be delivered of it; ``PendingFull`` if not all could."""
        done: list[Delivered] = []
        if self._left_bytes() < self._pending_bytes:
            return done
        problem: Unfinished | None = None
        try:
            await self._flush(done)  # what is refused for good is handed over when this call ends
        except Unfinished as error:
            problem = error
        if problem is not None or self._left_bytes() >= self._pending_bytes:
            raise PendingFull(
                f"{self._left_bytes()} bytes are left from earlier calls, so these records were not taken; "
                f"{problem or 'another call is sending them'}",
                done,
            ) from problem
        return done

    def _left_bytes(self) -> int:
        return sum(len(each.frame) for each in self._held.values() if each.left and each.refusal is None)

    async def _send_held(self, done: list[Delivered]) -> Receipt:
        try:
            await self._flush(done)
        except Unfinished as error:
            error.tally(done, self.pending)
            raise
        # What is flying is another call's to tell of.
        refusals = [each.refusal for each in self._held.values() if each.refusal is not None and not each.flying]
        self._held = {name: each for name, each in self._held.items() if each.flying or each.refusal is None}
        if refusals:
            first, *others = refusals
            first.others = tuple(others)
            raise first.tally(done, self.pending)
        return Receipt(tuple(done))

    async def _flush(self, done: list[Delivered]) -> None:
        """Send all that is held and that no other call is sending; those that nobody will ever take hold up nobody.
        ``done`` grows as batches are delivered, for whoever is told of an error."""
        mine = [each for each in self._held.values() if not each.flying and each.refusal is None]
        if not mine:
            return
        for each in mine:
            each.flying = True
        try:
            async with self._session() as http:
                for each in mine:
                    try:
                        done.append(await self._deliver(http, each.identity, each.frame))
                        self._held.pop(each.identity, None)
                    except (BatchConflict, BatchRejected) as error:
                        each.refusal = error
        finally:
            for each in mine:
                each.flying, each.left = False, True

    async def _deliver(self, http: httpx.AsyncClient, identity: Identity, frame: bytes) -> Delivered:
        transport = HttpTransport(http, self._urls, self._token)
        problem = ""
        for number in range(1, self._tries + 1):
            at = self._at  # other calls go on to the next collector too
            answer = await transport.post(at, identity, frame)
            if isinstance(answer, Taken):
                return Delivered(identity, answer.duplicate, number, self._urls[at] + PATH)
            if not isinstance(answer, Busy | Silent):
                raise _refusal(answer, identity, frame)
            problem = f"{self._urls[at]}: {answer.detail}"
            if isinstance(answer, Silent):
                problem += _HINTS.get(answer.reason, "")
            if self._at == at:
                self._at = (at + 1) % len(self._urls)
            if number < self._tries:
                await asyncio.sleep(self._pause(number, answer))
        raise Undelivered(f"batch {identity}: not delivered in {self._tries} tries; the last: {problem}")

    def _pause(self, number: int, answer: Busy | Silent) -> float:
        """Full jitter over a doubling bound; at least what the collector asked for."""
        asked_s = answer.retry_after_ms / 1000 if isinstance(answer, Busy) else 0.0
        # The other collectors may be well: the first round through all of them does not wait.
        if number < len(self._urls) and not asked_s:
            return 0.0
        grown = self._ambient.rng.uniform(0, min(LONGEST_WAIT_S, self._backoff_s * 2 ** min(number, 20)))
        return max(grown, min(asked_s, LONGEST_WAIT_S)) if len(self._urls) == 1 else grown

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[httpx.AsyncClient]:
        if self._http is not None:
            yield self._http
            return
        async with self._open() as http:
            yield http

    def _open(self) -> httpx.AsyncClient:
        # As many connections as there are sends at a time, and all of them kept: that is the caller's to bound.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        return httpx.AsyncClient(timeout=self._timeout_s, verify=self._verify, trust_env=False, limits=limits)

    async def __aenter__(self) -> Self:
        """Keep connections open for as long as the block lasts; without it, each ``send`` opens its own."""
        if self._http is not None:
            raise Invalid("this client is open already", remedy="make one Client for each block")
        self._http = self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()


def _token(token: str | None, token_file: Path | str | None) -> Callable[[], str]:
    if token is not None and token_file is None:
        checked = check_token(token, "the token given", remedy="pass what `holdfast tokens add` has printed")
        return lambda: checked
    if token_file is not None and token is None:
        return TokenSource(Path(token_file))
    raise Invalid("a client needs a token or the file of one", remedy="pass token= or token_file=, and not both")


def _refusal(answer: Conflict | Denied | Rejected, identity: Identity, frame: bytes) -> Unfinished:
    """What no further try can mend."""
    text, said = f"batch {identity}: {answer.detail}", answer.said.get("remedy")
    remedy = said if isinstance(said, str) else None
    match answer:
        case Conflict():
            return BatchConflict(text, frame, dict(answer.said))
        case Rejected():
            return BatchRejected(text, frame, remedy=remedy)
        case Denied():
            return BatchDenied(text, remedy=remedy)
