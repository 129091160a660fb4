"""Between the wire and acceptance: who is in quarantine is refused, and a conflict is answered with its resolution.

Costs nothing on the path of a batch that is accepted; a conflict costs one GET more.
"""

from dataclasses import replace

from holdfast.base.errors import HoldfastError
from holdfast.base.telemetry import logger
from holdfast.ingest.accept import Answer, IdentityConflict, Submission
from holdfast.ingest.collector import Acceptor
from holdfast.ingest.holds import Holds
from holdfast.ingest.resolutions import Resolutions

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
            decisions = await self._resolutions.of(submission.identity, submission.frame_sha256)
        except HoldfastError as error:
            # The verdict stands; the resolution is told with the next offer.
            _log.warning("conflict over %s: its resolution could not be read: %s", submission.identity, error)
            return answer
        return replace(answer, resolution=decisions[-1].resolution.value) if decisions else answer
