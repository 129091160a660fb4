"""Telemetry from an application: records in, accepted batches out.

    async with Client("https://collectors.example", agent_id="web-1", token=token) as client:
        await client.send([Gauge("queue_depth", 12.0, now_ns)])

A client is one boot: it draws a boot id and numbers records from 0, so an agent id belongs to one client at a time. A
batch is cut and encoded once; every try sends the same bytes, to this collector or another, so that however often it is
sent it is accepted once. Records are on no disk: what was not accepted when the process ends is gone. (An agent with a
queue on disk is for that.)

Errors: ``Undelivered`` after the last try, with the frames, which ``send_frame`` takes later; ``BatchConflict`` if
other bytes were accepted under this identity; ``Denied`` for tokens; ``Invalid`` for what no try can mend. What an
answer means is decided in ``transport``, for agents and clients alike; a token in a file is read again when it changes.
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

from holdfast.base.errors import Denied as NotAllowed
from holdfast.base.errors import HoldfastError, Invalid, Refused, Unavailable
from holdfast.base.ids import Ambient
from holdfast.ingest.agent.sender import UNTRUSTED, Busy, Conflict, Denied, Rejected, Silent, Taken
from holdfast.ingest.frame import ANY_SIZE, Identity, encode, inspect, pack
from holdfast.ingest.identity import check_sender
from holdfast.ingest.records import Alert, Counter, Gauge, Histogram, Log, Record
from holdfast.ingest.tokenfile import TokenSource, check_token
from holdfast.ingest.transport import PATH, HttpTransport
from holdfast.ingest.trust import check_url, trusting

LONGEST_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Delivered:
    """One batch that is accepted. ``duplicate`` if it was before this request: an earlier try had landed."""

    identity: Identity
    duplicate: bool
    tries: int
    url: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of one ``send``."""

    batches: tuple[Delivered, ...]

    @property
    def records(self) -> int:
        return sum(each.identity.seq_end - each.identity.seq_start + 1 for each in self.batches)


class Undelivered(Unavailable):
    """No collector took these frames in time. Each may have been accepted all the same: send the same bytes again."""

    def __init__(self, message: str, frames: Sequence[bytes]) -> None:
        super().__init__(message, maybe_applied=True, remedy="pass error.frames to send_frame later")
        self.frames = tuple(frames)


class BatchConflict(Refused):
    """Other bytes were accepted under this identity. The batch is here; nobody will ever accept it."""

    def __init__(self, message: str, frame: bytes, details: dict[str, Any]) -> None:
        super().__init__(message, remedy="find out who else sends as this agent and boot")
        self.frame = frame
        self.details = details


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
        tries: int = 10,
        backoff_ms: int = 100,
        timeout_s: float = 30.0,
        verify: ssl.SSLContext | Path | str | bool = True,
        ambient: Ambient | None = None,
    ) -> None:
        """``url``: a collector, or several to fail over between. ``verify``: the certificates by which it is trusted,
        a file of them in PEM or an SSL context; True for the usual ones."""
        urls = [url] if isinstance(url, str) else list(url)
        if not urls or tries < 1 or batch_records < 1:
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
        self._tries = tries
        self._backoff_s = backoff_ms / 1000
        self._timeout_s = timeout_s
        self._verify = trusting(Path(verify), "verify=") if isinstance(verify, Path | str) else verify
        self._http: httpx.AsyncClient | None = None

    async def send(self, records: Record | Iterable[Record]) -> Receipt:
        """Number the records, cut them into batches, and send these one after the other."""
        wanted = [records] if isinstance(records, Gauge | Counter | Histogram | Log | Alert) else list(records)
        if not wanted:
            return Receipt(())
        frames = [
            self._cut(wanted[start : start + self._batch_records])
            for start in range(0, len(wanted), self._batch_records)
        ]
        done: list[Delivered] = []
        async with self._session() as http:
            for number, frame in enumerate(frames):
                try:
                    done.append(await self._deliver(http, frame))
                except Undelivered as error:
                    raise Undelivered(str(error), frames[number:]) from error
        return Receipt(tuple(done))

    async def send_frame(self, frame: bytes) -> Delivered:
        """Send a frame as it is, such as one of ``Undelivered.frames``."""
        async with self._session() as http:
            return await self._deliver(http, frame)

    def _cut(self, records: list[Record]) -> bytes:
        batch = pack(self.agent_id, self.boot_id, records, seq_start=self.next_seq)
        frame = encode(batch)
        self.next_seq = batch.identity.seq_end + 1
        return frame

    async def _deliver(self, http: httpx.AsyncClient, frame: bytes) -> Delivered:
        identity = inspect(frame, ANY_SIZE).identity
        transport = HttpTransport(http, self._urls, self._token)
        problem = ""
        for number in range(1, self._tries + 1):
            answer = await transport.post(self._at, identity, frame)
            if isinstance(answer, Taken):
                return Delivered(identity, answer.duplicate, number, self._urls[self._at] + PATH)
            if not isinstance(answer, Busy | Silent):
                raise _refusal(answer, identity, frame)
            problem = f"{self._urls[self._at]}: {answer.detail}"
            if isinstance(answer, Silent) and answer.reason == UNTRUSTED:
                problem += " (verify= names the file of the CA to trust)"
            self._at = (self._at + 1) % len(self._urls)
            if number < self._tries:
                await asyncio.sleep(self._pause(number, answer))
        raise Undelivered(f"batch {identity}: not delivered in {self._tries} tries; the last: {problem}", [frame])

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


def _refusal(answer: Conflict | Denied | Rejected, identity: Identity, frame: bytes) -> HoldfastError:
    """What no further try can mend."""
    text, remedy = f"batch {identity}: {answer.detail}", answer.said.get("remedy")
    if isinstance(answer, Conflict):
        return BatchConflict(text, frame, dict(answer.said))
    kind = NotAllowed if isinstance(answer, Denied) else Invalid
    return kind(text, remedy=remedy if isinstance(remedy, str) else None)
