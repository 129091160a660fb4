"""Send telemetry from an application to collectors.

    async with Client("https://collectors.example", agent_id="web-1", token=token) as client:
        await client.send([Gauge("queue_depth", 12.0, now_ns)])

A client is one boot: it generates a boot id and numbers records from 0, so only one client at a time may use an agent
id. A batch is encoded once, and every try sends the same bytes to this or another collector, so that it is accepted
once however often it is sent. Records are kept in memory only: those that are not accepted when the process ends are
lost. (Use an agent, with its queue on disk, where that matters.)

Records that ``send`` has taken stay in ``pending`` until a collector has accepted them or has rejected them for good,
however the call ends: by an error, by a timeout of the application, by cancellation. ``resend`` or the next ``send``
sends them again under the same identities, before any new records.

Errors: ``Unfinished`` for records that were taken: ``Undelivered`` after the last try, ``BatchDenied`` for a refused
token, ``BatchConflict`` if other bytes were accepted under this identity, ``BatchRejected`` if the collector will never
accept the batch; the latter two carry the batch. ``Invalid`` for an argument that is not a record or a record that is
too large, and ``PendingFull``: such a call has taken nothing. ``transport`` interprets answers, for agents and clients
alike. A token file is read again when it changes.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from holdfast.base import errors
from holdfast.base.errors import HoldfastError, Invalid, Refused, Unavailable
from holdfast.base.ids import Ambient
from holdfast.telemetry.agent.sender import UNTRUSTED, WRONG_NAME, Busy, Conflict, Denied, NoAnswer, Rejected, Taken
from holdfast.telemetry.agent.transport import (
    PATH,
    HttpTransport,
    TokenSource,
    check_token,
    check_url,
    http_client,
    trusting,
)
from holdfast.telemetry.frame import ANY_SIZE, Limits, encode, inspect, pack
from holdfast.telemetry.frame.batch import Batch
from holdfast.telemetry.identity import BatchIdentity, check_sender
from holdfast.telemetry.records import Alert, Counter, Cumulative, Gauge, Histogram, Log, Record, differences


@dataclass(frozen=True, slots=True)
class Delivered:
    """An accepted batch. ``duplicate`` if it had been accepted before this request, by an earlier try."""

    identity: BatchIdentity
    duplicate: bool
    tries: int
    url: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """The batches that one call delivered, including those that earlier calls had left."""

    batches: tuple[Delivered, ...]

    @property
    def records(self) -> int:
        return sum(each.identity.numbers for each in self.batches)


class Unfinished(HoldfastError):
    """The client has taken the records, and not all are delivered. Never pass them to ``send`` again: they would get
    other numbers and be counted twice if they were accepted. ``resend`` sends the same bytes."""

    delivered: tuple[Delivered, ...] = ()
    """The batches that this call delivered."""
    frames: tuple[bytes, ...] = ()
    """What the client still holds, as in ``pending``. Each of them may have been accepted."""
    _tally = ""

    def tally(self, delivered: Sequence[Delivered], frames: tuple[bytes, ...]) -> Self:
        self.delivered, self.frames = tuple(delivered), frames
        self._tally = f"; batches delivered by this call: {len(delivered)}, kept for resend: {len(frames)}"
        return self

    def __str__(self) -> str:
        return super().__str__() + self._tally


class Undelivered(Unfinished, Unavailable):
    """No collector has accepted this batch within the tries."""

    def __init__(self, message: str) -> None:
        super().__init__(message, maybe_applied=True, remedy="call resend() later, or pass error.frames to send_frame")


class BatchDenied(Unfinished, errors.Denied):
    """The token is not valid, or not for this agent; or an operator has quarantined agent and boot."""


class _Refused(Unfinished):
    """A batch that no collector will accept. The error has it, and the client does not keep it."""

    frame: bytes
    others: "tuple[_Refused, ...]" = ()
    """The errors of further refused batches, each with its batch."""


class BatchConflict(_Refused, Refused):
    """Other bytes were accepted under this identity."""

    def __init__(self, message: str, frame: bytes, details: dict[str, Any]) -> None:
        super().__init__(message, remedy="find out who else sends as this agent and boot")
        self.frame = frame
        self.details = details


class BatchRejected(_Refused, Invalid):
    """A collector has refused these bytes for good."""

    def __init__(self, message: str, frame: bytes, *, remedy: str | None) -> None:
        super().__init__(message, remedy=remedy)
        self.frame = frame


class PendingFull(Unavailable):
    """Too much of earlier calls is undelivered, so the records of this call were not taken."""

    def __init__(self, message: str, delivered: Sequence[Delivered] = ()) -> None:
        super().__init__(message, remedy="pass them to send again once resend() goes through, or raise pending_bytes=")
        self.delivered = tuple(delivered)
        """Batches of earlier calls that this call delivered."""


SHOWN = 40
"""Characters of a message that an error shows."""
_RECORDS = (Gauge, Counter, Histogram, Log, Alert)


def cut(
    agent_id: str, boot_id: str, records: Sequence[Record], seq_start: int, *, most_records: int, limits: Limits
) -> list[tuple[BatchIdentity, bytes]]:
    """Frames of these records that are within the limits of a collector. ``Invalid`` if a single record is too large;
    such a call has used no sequence number."""
    for number, record in enumerate(records):
        if not isinstance(record, _RECORDS):
            raise Invalid(f"record {number}: {type(record).__name__} is not a Gauge, Counter, Histogram, Log or Alert")
    BatchIdentity(agent_id, boot_id, seq_start, seq_start + max(0, len(records) - 1))
    made: list[tuple[BatchIdentity, bytes]] = []
    # The size of a frame is known once it is made: one that is too large is made again in halves.
    waiting = [(first, min(first + most_records, len(records))) for first in range(0, len(records), most_records)][::-1]
    while waiting:
        first, end = waiting.pop()
        try:
            batch = pack(agent_id, boot_id, records[first:end], seq_start=seq_start + first)
            made.append((batch.identity, _frame(batch, limits)))
        except Invalid as error:  # each record is valid, so together they are too large for one frame
            if end - first == 1:
                raise Invalid(
                    f"record {first}, {_named(records[first])}, is too large to be sent: {error}",
                    remedy="shorten it; nothing of this call was sent",
                ) from error
            middle = (first + end) // 2
            waiting += [(middle, end), (first, middle)]
    return made


def _frame(batch: Batch, limits: Limits) -> bytes:
    labels = len(batch.label_sets.names)
    buckets = sum(counts.size for counts in batch.histograms.counts)
    if max(labels, buckets) > limits.elements:
        raise Invalid(f"{labels} labels and {buckets} buckets, a batch may have {limits.elements} of each")
    frame = encode(batch)
    inspect(frame, limits)
    return frame


def _named(record: Record) -> str:
    if isinstance(record, Log):
        return f"the log {record.message[:SHOWN]!r}"
    return f"the {type(record).__name__.lower()} {record.name[:SHOWN]!r}"


LONGEST_WAIT_S = 30.0
BATCH_BYTES = Limits().frame_bytes
PENDING_BYTES = 64 << 20


_HINTS = {
    UNTRUSTED: " (pass the file of its CA as verify=)",
    WRONG_NAME: " (use a name in the URL that is in its certificate)",
}


@dataclass(slots=True)
class _Held:
    """A batch that is not known to be accepted."""

    identity: BatchIdentity
    frame: bytes
    sending: bool = False
    """A call is sending it now."""
    refusal: BatchConflict | BatchRejected | None = None
    """No collector will accept it. It is not sent again, and the next call that ends raises this."""


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
        unsafe_plain_http: bool = False,
        ambient: Ambient | None = None,
    ) -> None:
        """``url``: a collector, or several to fail over between. ``verify``: the CA certificates to trust, as a PEM
        file or an SSL context; True for those of the system. ``unsafe_plain_http``: allow ``http://`` URLs of other
        machines, to which the token is then sent unencrypted. ``batch_bytes``: the largest body of a request.
        ``pending_bytes``: no more records are taken while this much could not be delivered."""
        urls = [url] if isinstance(url, str) else list(url)
        if not urls or min(tries, batch_records, batch_bytes, pending_bytes) < 1:
            raise Invalid("url, tries, batch_records, batch_bytes and pending_bytes must not be empty or below 1")
        self._ambient = ambient if ambient is not None else Ambient.system()
        self.agent_id = agent_id
        self.boot_id = boot_id if boot_id is not None else self._ambient.ids.unique()
        self.next_seq = seq_start
        check_sender(agent_id)
        BatchIdentity(agent_id, self.boot_id, seq_start, seq_start)
        self._unsafe_plain_http = unsafe_plain_http
        self._urls = [check_url(each, unsafe_plain_http=unsafe_plain_http) for each in urls]
        self._at = 0
        self._token = _token(token, token_file)
        self._batch_records = batch_records
        self._limits = Limits(frame_bytes=batch_bytes)
        self._pending_bytes = pending_bytes
        self._held: dict[BatchIdentity, _Held] = {}
        self._cumulative: Cumulative = {}
        self._tries = tries
        self._backoff_s = backoff_ms / 1000
        self._timeout_s = timeout_s
        self._verify = trusting(Path(verify), "verify=") if isinstance(verify, Path | str) else verify
        self._http: httpx.AsyncClient | None = None

    @property
    def pending(self) -> tuple[bytes, ...]:
        """The frames of all batches that are not known to be accepted, in the order of their sequence numbers."""
        return tuple(each.frame for each in self._held.values())

    async def send(self, records: Record | Iterable[Record]) -> Receipt:
        """Take the records, number them and divide them into batches. Send what earlier calls have left, then these
        batches, one after the other. ``next_seq`` grows when the records are taken: after a cancelled call it shows
        whether that call had taken them, if no other call runs."""
        wanted = [records] if isinstance(records, Gauge | Counter | Histogram | Log | Alert) else list(records)
        done = await self._make_room() if wanted else []
        # No await between the check for room and taking the records.
        self._take(wanted)
        return await self._send_held(done)

    async def resend(self) -> Receipt:
        """Send what is ``pending``, with the same bytes as before, except for batches that another call is sending."""
        return await self._send_held([])

    async def send_frame(self, frame: bytes) -> Delivered:
        """Send a frame as it is, such as one of ``Unfinished.frames`` of this or another client."""
        identity = inspect(frame, ANY_SIZE).identity
        async with self._session() as transport:
            delivered = await self._deliver(transport, identity, frame)
            held = self._held.get(identity)
            if held is not None and held.frame == frame:
                del self._held[identity]
            return delivered

    def _take(self, records: list[Record]) -> None:
        """All of them or none."""
        sent, latest = differences(records, self._cumulative)
        made = cut(
            self.agent_id,
            self.boot_id,
            sent,
            self.next_seq,
            most_records=self._batch_records,
            limits=self._limits,
        )
        self._held |= {identity: _Held(identity, frame) for identity, frame in made}
        self.next_seq += len(sent)
        self._cumulative |= latest

    async def _make_room(self) -> list[Delivered]:
        """If too much is pending, deliver it first. ``PendingFull`` if too much is left after that."""
        done: list[Delivered] = []
        if self._left_bytes() < self._pending_bytes:
            return done
        problem: Unfinished | None = None
        try:
            await self._flush(done)  # batches that are rejected for good are raised when this call ends
        except Unfinished as error:
            problem = error
        if problem is not None or self._left_bytes() >= self._pending_bytes:
            raise PendingFull(
                f"{self._left_bytes()} bytes of earlier calls are not delivered, so these records were not taken; "
                f"{problem or 'another call is sending the earlier ones'}",
                done,
            ) from problem
        return done

    def _left_bytes(self) -> int:
        return sum(len(each.frame) for each in self._held.values() if not each.sending and each.refusal is None)

    async def _send_held(self, done: list[Delivered]) -> Receipt:
        try:
            await self._flush(done)
        except Unfinished as error:
            error.tally(done, self.pending)
            raise
        # A batch that another call is sending is reported by that call.
        refusals = [each.refusal for each in self._held.values() if each.refusal is not None and not each.sending]
        self._held = {name: each for name, each in self._held.items() if each.sending or each.refusal is None}
        if refusals:
            first, *others = refusals
            first.others = tuple(others)
            raise first.tally(done, self.pending)
        return Receipt(tuple(done))

    async def _flush(self, done: list[Delivered]) -> None:
        """Send all batches that no other call is sending. A rejected batch does not stop the others. ``done`` grows as
        batches are delivered, so that an error can report them."""
        ours = [each for each in self._held.values() if not each.sending and each.refusal is None]
        if not ours:
            return
        for each in ours:
            each.sending = True
        try:
            async with self._session() as transport:
                for each in ours:
                    try:
                        done.append(await self._deliver(transport, each.identity, each.frame))
                        self._held.pop(each.identity, None)
                    except (BatchConflict, BatchRejected) as error:
                        each.refusal = error
        finally:
            for each in ours:
                each.sending = False

    async def _deliver(self, transport: HttpTransport, identity: BatchIdentity, frame: bytes) -> Delivered:
        problem = ""
        for number in range(1, self._tries + 1):
            at = self._at  # concurrent calls may move on to the next collector too
            answer = await transport.post(at, identity, frame)
            if isinstance(answer, Taken):
                return Delivered(identity, answer.duplicate, number, self._urls[at] + PATH)
            if not isinstance(answer, Busy | NoAnswer):
                raise _refusal(answer, identity, frame)
            problem = f"{self._urls[at]}: {answer.detail}"
            if isinstance(answer, NoAnswer):
                problem += _HINTS.get(answer.reason, "")
            if self._at == at:
                self._at = (at + 1) % len(self._urls)
            if number < self._tries:
                await asyncio.sleep(self._pause(number, answer))
        raise Undelivered(f"batch {identity}: not delivered in {self._tries} tries; the last error: {problem}")

    def _pause(self, number: int, answer: Busy | NoAnswer) -> float:
        """Exponential backoff with full jitter, and at least what the collector asked for."""
        asked_s = answer.retry_after_ms / 1000 if isinstance(answer, Busy) else 0.0
        # The other collectors may be available: try each of them once without a pause.
        if number < len(self._urls) and not asked_s:
            return 0.0
        grown = self._ambient.rng.uniform(0, min(LONGEST_WAIT_S, self._backoff_s * 2 ** min(number, 20)))
        return max(grown, min(asked_s, LONGEST_WAIT_S)) if len(self._urls) == 1 else grown

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[HttpTransport]:
        if self._http is not None:
            yield self._transport(self._http)
            return
        async with self._open() as http:
            yield self._transport(http)

    def _transport(self, http: httpx.AsyncClient) -> HttpTransport:
        return HttpTransport(http, self._urls, self._token, unsafe_plain_http=self._unsafe_plain_http)

    def _open(self) -> httpx.AsyncClient:
        # One connection per concurrent send, all kept open: the application limits how many calls run at a time.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        return http_client(timeout=self._timeout_s, verify=self._verify, limits=limits, environment_proxies=False)

    async def __aenter__(self) -> Self:
        """Keep connections open for the duration of the block; outside of one, each ``send`` opens its own."""
        if self._http is not None:
            raise Invalid("this client is already open", remedy="create one Client for each `async with` block")
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
    raise Invalid("a client needs a token or a token file", remedy="pass either token= or token_file=")


def _refusal(answer: Conflict | Denied | Rejected, identity: BatchIdentity, frame: bytes) -> Unfinished:
    """The error for an answer that no further try can change."""
    text, advice = f"batch {identity}: {answer.detail}", answer.error.get("remedy")
    remedy = advice if isinstance(advice, str) else None
    match answer:
        case Conflict():
            return BatchConflict(text, frame, dict(answer.error))
        case Rejected():
            return BatchRejected(text, frame, remedy=remedy)
        case Denied():
            return BatchDenied(text, remedy=remedy)
