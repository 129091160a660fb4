"""One batch over HTTP: authentication, limits, decoding, acceptance.

The order is the specification's: the token and its agent, then the size, and only then the body is read. Memory is
reserved before it is used. A small frame is decoded on the event loop; large ones in threads, a few at a time, so that
the loop is not blocked.

Errors are ``Fault``, ``FrameInvalid`` or those of acceptance; ``errors`` maps each to a status.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect

from holdfast.base.aio import blocking
from holdfast.base.clock import Clock
from holdfast.base.errors import Ambiguous, Denied, Invalid, NotFound, Unavailable
from holdfast.server.errors import Fault, draining
from holdfast.server.limits import Limits
from holdfast.server.metrics import Metrics
from holdfast.server.readiness import Readiness
from holdfast.server.tokens import Token, TokenFile
from holdfast.telemetry import frame
from holdfast.telemetry.accept.accept import Accepted, Answer, IdentityConflict, Submission, submission_of
from holdfast.telemetry.accept.collector import Acceptor
from holdfast.telemetry.accept.conflicts import IdentityQuarantined
from holdfast.telemetry.accept.record_times import RecordTimes
from holdfast.telemetry.frame import Header

AGENT = "x-lightmetrics-agent"
SEQ_START = "x-lightmetrics-seq-start"
SEQ_END = "x-lightmetrics-seq-end"

INLINE_PAYLOAD = 128 << 10
"""Frames with a payload up to this size are decoded on the event loop: using a thread would cost more."""
INLINE_RECORDS = 20_000
"""The same for records, because columns of equal numbers compress to almost nothing."""
DECODERS = 2
"""Large frames decoded at the same time."""
PER_RECORD = 40
"""Bytes of a decoded record's columns."""
_AGAIN = "send the same batch again"
_LATER = "keep the batch and send it again later"


@dataclass(frozen=True, slots=True)
class Claim:
    """The batch in the body of a request according to its headers."""

    agent_id: str
    seq_start: int
    seq_end: int
    length: int


class Intake:
    def __init__(
        self,
        acceptor: Acceptor,
        tokens: TokenFile,
        limits: Limits,
        metrics: Metrics,
        clock: Clock,
        *,
        frames: frame.Limits,
        accept_timeout_s: float | None,
        record_times: RecordTimes,
        readiness: Readiness,
    ) -> None:
        """``accept_timeout_s`` is None for an acceptor that must not be cancelled, such as that of a spool."""
        self._acceptor = acceptor
        self._tokens = tokens
        self._limits = limits
        self._metrics = metrics
        self._clock = clock
        self._frames = frames
        self._accept_timeout_s = accept_timeout_s
        self._record_times = record_times
        self._readiness = readiness
        self._decoders = asyncio.Semaphore(DECODERS)
        self.draining = False

    async def accept(self, token: Token, headers: Mapping[str, str], body: AsyncIterator[bytes]) -> dict[str, Any]:
        """The receipt of a batch that is accepted now or was accepted before. All other outcomes are raised."""
        with self._limits.request(token.token_id):
            claim = self._claim(token, headers)
            with self._limits.memory(claim.length):
                data = await self._read(claim, body)
                began_ns = self._clock.monotonic_ns()
                answer = await self._accept(claim, data)
                self._metrics.accept_seconds.observe((self._clock.monotonic_ns() - began_ns) / 1_000_000_000)
        return self._document(answer)

    def authenticate(self, headers: Mapping[str, str]) -> Token:
        """The token of a request; while the collector drains, every request is refused."""
        if self.draining:
            raise draining()
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        token = self._tokens.authenticate(secret.strip())
        if scheme.lower() != "bearer" or token is None:
            raise Fault(
                "unauthenticated",
                "the Authorization header has no valid token",
                remedy="send Authorization: Bearer with a token from `holdfast tokens add`",
            )
        return token

    def _claim(self, token: Token, headers: Mapping[str, str]) -> Claim:
        agent_id = _text(headers, AGENT)
        if not token.allows(agent_id):
            raise Fault(
                "agent_not_allowed",
                f"token {token.token_id} is not for the agent {agent_id!r}",
                remedy="use the agent's own token, or add one for it",
            )
        if "content-encoding" in headers:
            raise Fault("content_encoding", "Content-Encoding is not supported", remedy="send the frame without it")
        length = headers.get("content-length", "")
        if not length.isascii() or not length.isdigit() or "transfer-encoding" in headers:
            raise Fault("length_required", "Content-Length is missing", remedy="send the length of the frame")
        size = int(length)
        if size > self._frames.frame_bytes:
            raise _too_large(size, self._frames.frame_bytes)
        return Claim(agent_id, _number(headers, SEQ_START), _number(headers, SEQ_END), size)

    async def _read(self, claim: Claim, body: AsyncIterator[bytes]) -> bytes:
        parts: list[bytes] = []
        size = 0
        try:
            async for part in body:
                size += len(part)
                if size > claim.length:
                    raise _too_large(size, claim.length)
                parts.append(part)
        except ClientDisconnect:
            message = f"the sender closed the connection after {size} of {claim.length} bytes"
            raise Fault("timeout", message, remedy=_AGAIN) from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _accept(self, claim: Claim, data: bytes) -> Answer:
        header = frame.inspect(data, self._frames)
        _compare(claim, header)
        unpacked_bytes = header.payload_bytes + PER_RECORD * header.records
        with self._limits.memory(unpacked_bytes, reserved=len(data)):
            if header.payload_bytes <= INLINE_PAYLOAD and header.records <= INLINE_RECORDS:
                frame_sha256 = hashlib.sha256(data).hexdigest()
                batch = frame.decode(data, self._frames, header=header)
                return await self._offer(submission_of(data, batch, frame_sha256=frame_sha256))
            async with self._decoders:
                unpacked = await blocking(frame.unpack, data, self._frames, header)
            with self._limits.memory(unpacked.table_bytes, reserved=len(data) + unpacked_bytes):
                async with self._decoders:
                    submission = await blocking(_submission, data, unpacked)
                del unpacked  # the payload
                return await self._offer(submission)

    async def _offer(self, submission: Submission) -> Answer:
        try:
            self._record_times.check(submission.batch, self._clock.wall_ns())
        except Invalid as error:
            raise Fault("record_times", f"batch {submission.identity}: {error}", remedy=error.remedy or "") from error
        size = len(submission.body)
        try:
            async with asyncio.timeout(self._accept_timeout_s):
                answer = await self._acceptor.accept(submission)
        except TimeoutError:
            message = f"the store did not answer within {self._accept_timeout_s:g} s"
            self._readiness.refused(message, size)
            raise Fault("outcome_unknown", f"batch {submission.identity}: {message}", remedy=_AGAIN) from None
        except IdentityQuarantined as error:
            raise Fault("identity_quarantined", str(error), remedy=error.remedy or _LATER) from error
        except Ambiguous as error:
            self._readiness.refused(str(error), size)
            raise Fault("outcome_unknown", str(error), remedy=_AGAIN) from error
        except (Unavailable, Denied, NotFound) as error:  # of the collector's request to the store, not the sender's
            self._readiness.refused(str(error), size)
            raise Fault("unavailable", str(error), remedy=_AGAIN) from error
        self._readiness.accepted()
        return answer

    def _document(self, answer: Answer) -> dict[str, Any]:
        if isinstance(answer, IdentityConflict):
            self._metrics.count_batch("conflict")
            raise _conflict(answer)
        if answer.duplicate:
            self._metrics.count_batch("duplicate")
        else:
            self._metrics.count_new(answer.manifest.frame_bytes, answer.manifest.records)
        return _receipt(answer)


def _submission(data: bytes, unpacked: frame.Unpacked) -> Submission:
    return submission_of(data, unpacked.batch())


def _compare(claim: Claim, header: Header) -> None:
    identity = header.identity
    in_headers = (claim.agent_id, claim.seq_start, claim.seq_end)
    in_body = (identity.agent_id, identity.seq_start, identity.seq_end)
    if in_headers != in_body:
        raise Fault(
            "header_mismatch",
            "the headers name {} {}-{}, the body {} {}-{}".format(*in_headers, *in_body),
            remedy="send the headers that belong to this frame",
        )


def _receipt(answer: Accepted) -> dict[str, Any]:
    manifest = answer.manifest
    return {
        "duplicate": answer.duplicate,
        "agent_id": manifest.identity.agent_id,
        "boot_id": manifest.identity.boot_id,
        "seq_start": manifest.identity.seq_start,
        "seq_end": manifest.identity.seq_end,
        "frame_sha256": manifest.frame_sha256,
        "accepted_at_unix_ns": manifest.accepted_at_unix_ns,
        "collector_id": manifest.collector_id,
    }


def _conflict(answer: IdentityConflict) -> Fault:
    accepted, record = answer.accepted, answer.quarantine
    return Fault(
        "identity_conflict",
        f"batch {accepted.identity}: other bytes were accepted before, with the hash {accepted.frame_sha256}",
        remedy="keep the batch and look into it: two senders share an identity, or sequence numbers were used twice",
        fields={
            "accepted_manifest_key": accepted.key,
            "accepted_frame_sha256": accepted.frame_sha256,
            "quarantine_manifest_key": None if record is None else record.key,
            "resolution": answer.resolution,
        },
    )


def _too_large(size: int, limit: int) -> Fault:
    return Fault("too_large", f"{size} bytes are more than the {limit} that are allowed", remedy="send smaller batches")


def _text(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name)
    if not value:
        raise Fault("missing_header", f"{_title(name)} is missing", remedy="send the headers of a batch")
    try:
        return value.encode("latin-1").decode()  # headers are bytes, and these are UTF-8
    except UnicodeDecodeError as error:
        raise Fault("bad_header", f"{_title(name)} is not UTF-8", remedy="send it in UTF-8") from error


def _number(headers: Mapping[str, str], name: str) -> int:
    value = _text(headers, name)
    if not value.isascii() or not value.isdigit() or len(value) > 20:
        message = f"{_title(name)}: {value[:40]!r} is not a sequence number"
        raise Fault("bad_header", message, remedy="send a whole number from 0 on, in decimal digits")
    return int(value)


def _title(name: str) -> str:
    return name.title()


def lowered(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """ASGI headers by lower-case name; the first of several with one name counts."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(headers)}
