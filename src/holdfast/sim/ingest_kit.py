"""What the scenarios of ingest share: frames as small as can be, answers to senders, stores out of service."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache

from holdfast.base.errors import Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.layer import Layer
from holdfast.objects.place import Place
from holdfast.objects.store import OVERWRITE, Lost, Meta, Mode, NotModified, Object, Store, Version, Written
from holdfast.sim.history import Done, Operation, Outcome
from holdfast.sim.world import Process
from holdfast.telemetry.accept.accept import Accepted, Answer, Submission, submission_of
from holdfast.telemetry.accept.authority import Acceptance, Authority
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.frame import decode, encode, pack
from holdfast.telemetry.records import Gauge

PLACE = Place("memory", "", "sim", "")


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer, as the checkers see it."""

    duplicate: bool | None
    """None for a conflict."""
    sha256: str
    """What is accepted under the identity, as the answer says."""
    recorded: str | None = None
    """The key of the conflict's record."""


def authority(acceptance: Acceptance = Acceptance.S3_MANIFEST) -> Authority:
    return Authority("authority", PLACE, acceptance, "2026-01-01T00:00:00.000000+00:00")


@lru_cache(maxsize=1024)
def submission(number: int, variant: int = 0) -> Submission:
    """Batch ``number`` of the one agent; variants of a batch are other bytes under the same identity."""
    body = encode(pack("agent", "boot", [Gauge("load", variant, 1)] * 10, seq_start=number * 10))
    return submission_of(body, decode(body))


def show(answer: Answer) -> Answered:
    if isinstance(answer, Accepted):
        return Answered(answer.duplicate, answer.manifest.frame_sha256)
    return Answered(None, answer.accepted.frame_sha256, None if answer.quarantine is None else answer.quarantine.key)


def effect(process: Process) -> Callable[[AcceptedManifest, Submission], None]:
    """What follows from an acceptance leaves a trace in the history."""

    def on_accepted(manifest: AcceptedManifest, submitted: Submission) -> None:
        position = process.note("acts on", manifest.key, submitted.frame_sha256)
        process.world.operations.append(
            Operation(process.name, "effect", manifest.key, submitted.frame_sha256, position, position, Done())
        )

    return on_accepted


async def send(process: Process, submitted: Submission, accept: Awaitable[Answer], *, key: str) -> Outcome:
    return await process.perform("accept", accept, key=key, argument=submitted.frame_sha256, show=show)


@dataclass(frozen=True, slots=True)
class Outage:
    """The store answers no request for a while."""

    begins_ms: float = 0
    lasts_ms: float = 0

    @classmethod
    def drawn(cls, rng: random.Random) -> "Outage":
        return cls(rng.uniform(0, 1_000), rng.choice((0.0, 0.0, 300.0, 3_000.0)))

    def over(self, backend: Store, ambient: Ambient) -> Store:
        return _Interrupted(backend, self, ambient) if self.lasts_ms else backend

    def goes_on(self, ambient: Ambient) -> bool:
        now_ms = ambient.clock.monotonic_ns() / 1_000_000
        return self.begins_ms <= now_ms < self.begins_ms + self.lasts_ms


class _Interrupted(Layer):
    def __init__(self, inner: Store, outage: Outage, ambient: Ambient) -> None:
        super().__init__(inner)
        self._outage = outage
        self._ambient = ambient

    async def get(self, key: str) -> Object:
        await self._meet(key)
        return await super().get(key)

    async def get_unless(self, key: str, version: Version) -> Object | NotModified:
        await self._meet(key)
        return await super().get_unless(key, version)

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        await self._meet(key)
        return await super().put(key, body, mode)

    async def head(self, key: str) -> Meta:
        await self._meet(key)
        return await super().head(key)

    async def delete(self, key: str) -> None:
        await self._meet(key)
        await super().delete(key)

    async def _meet(self, key: str) -> None:
        if self._outage.goes_on(self._ambient):
            await asyncio.sleep(0.01)
            raise Unavailable(f"{key}: 503, out of service")
