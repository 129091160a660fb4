"""What the scenarios of ingest share: frames as small as can be, and answers to senders."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache

from holdfast.objects.place import Place
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
