"""Between HTTP and acceptance: agents in quarantine are refused, and a conflict is answered with its resolution.

Costs nothing on the path of a batch that is accepted; a conflict costs one GET more. That is not waited for long: a
collector with a spool has its verdict from the disk, and gives it while the store is away.
"""

import asyncio
from dataclasses import replace

from holdfast.base.errors import HoldfastError
from holdfast.base.telemetry import logger
from holdfast.telemetry.accept.accept import Answer, IdentityConflict, Submission
from holdfast.telemetry.accept.collector import Acceptor
from holdfast.telemetry.accept.holds import Holds
from holdfast.telemetry.accept.resolutions import Resolutions

RESOLUTION_S = 1.0
"""How long a request waits for the resolution of its conflict to be read."""

_log = logger("ingest")


class Guarded:
    """An acceptor around another."""

    def __init__(self, inner: Acceptor, holds: Holds, resolutions: Resolutions) -> None:
        self._inner = inner
        self._holds = holds
        self._resolutions = resolutions

    async def accept(self, submission: Submission) -> Answer:
        self._holds.check(submission.identity)
        answer = await self._inner.accept(submission)
        if not isinstance(answer, IdentityConflict):
            return answer
        try:
            async with asyncio.timeout(RESOLUTION_S):
                decisions = await self._resolutions.of(submission.identity, submission.frame_sha256)
        except (HoldfastError, TimeoutError) as error:
            # The verdict stands; the resolution is answered to the next offer.
            _log.warning("conflict over %s: its resolution could not be read: %r", submission.identity, error)
            return answer
        return replace(answer, resolution=decisions[-1].resolution.value) if decisions else answer
