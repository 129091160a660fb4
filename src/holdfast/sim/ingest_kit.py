"""What the scenarios of ingest share: frames as small as can be, and senders that try again."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from holdfast.ingest.accept import Accepted, Answer, FrameHead, Submission
from holdfast.ingest.authority import Acceptance, Authority, Place
from holdfast.ingest.identity import BatchIdentity
from holdfast.ingest.manifest import AcceptedManifest
from holdfast.sim.history import Done, Operation, Outcome
from holdfast.sim.world import Process

PLACE = Place("memory", "", "sim", "")


@dataclass(frozen=True, slots=True)
class Told:
    """An answer, as the checkers see it."""

    duplicate: bool | None
    """None for a conflict."""
    sha256: str
    """What is accepted under the identity, as the answer says."""
    recorded: str | None = None
    """The key of the conflict's record."""


def authority(acceptance: Acceptance = Acceptance.S3_MANIFEST) -> Authority:
    return Authority("authority", PLACE, acceptance, "2026-01-01T00:00:00.000000+00:00")


def submission(number: int, variant: int = 0) -> Submission:
    """Batch ``number`` of the one agent; variants of a batch are other bytes under the same identity."""
    identity = BatchIdentity("agent", "boot", number * 10, number * 10 + 9)
    frame = [identity.agent_id, identity.boot_id, identity.seq_start, identity.seq_end, variant]
    return Submission.of(identity, json.dumps(frame).encode(), records={"metrics": 10})


def inspect(body: bytes) -> FrameHead | None:
    try:
        agent_id, boot_id, seq_start, seq_end, _ = json.loads(body)
    except ValueError:
        return None
    return FrameHead(BatchIdentity(agent_id, boot_id, seq_start, seq_end))


def show(answer: Answer) -> Told:
    if isinstance(answer, Accepted):
        return Told(answer.duplicate, answer.manifest.frame_sha256)
    return Told(None, answer.accepted.frame_sha256, None if answer.quarantine is None else answer.quarantine.key)


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
