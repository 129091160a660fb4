"""Settle: turn unknown outcomes of conditional writes into the truth, or say that it is unknown.

A conditional PUT can land while its response is lost, or be delivered twice; the writer then meets 412 against its own
write. So after every 412, 409 and open outcome, first attempt included, this layer reads the object back:

* the whole body is ours: ``Written`` (control bodies carry a write id, so equal bytes mean the same write);
* the condition still holds: the write has not landed, and is tried again, within the budget;
* anything else: ``Lost``, with what was found.

``Lost`` means "other bytes stand there now". On an object that others may overwrite, ours may have landed before them:
only history can tell, and the shapes that keep one (``register``) ask it with the object that ``Lost`` carries.

Under a key that names its bytes (``Addressed``) nothing needs to be read after a 412: the bytes are there, whoever
wrote them. A 409 or an open outcome settles by existence and length.

When the budget ends while a write may still land, the outcome is ``Ambiguous``; it is never guessed.
"""

from holdfast.base.errors import Ambiguous, Contended, Corrupt, NotFound, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.layer import Layer
from holdfast.objects.retry import Budget, RetryPolicy
from holdfast.objects.store import (
    OVERWRITE,
    Addressed,
    Create,
    IfMatch,
    Lost,
    Mode,
    Overwrite,
    Store,
    Written,
    check_write,
)


class Settled(Layer):
    def __init__(self, inner: Store, policy: RetryPolicy, ambient: Ambient) -> None:
        super().__init__(inner)
        self._policy = policy
        self._ambient = ambient

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        body = check_write(key, body, mode)
        if isinstance(mode, Overwrite):
            return await self.inner.put(key, body, mode)
        started_ns = self._ambient.clock.monotonic_ns()
        budget: Budget | None = None
        while True:
            trouble: Unavailable | None = None
            try:
                outcome = await self.inner.put(key, body, mode)
                if isinstance(outcome, Written) or isinstance(mode, Addressed):
                    return outcome
            except Unavailable as error:
                if not (budget or error.maybe_applied or isinstance(error, Contended)):
                    raise  # certainly not written, and the retry layer has done what it could
                trouble = error
            # A 412 may be the echo of our own write, and in a 409 its two copies may have met.
            budget = budget or Budget(self._policy, self._ambient, started_ns)
            verdict = await self._look(key, body, mode, budget)
            if verdict is not None:
                return verdict
            if not await budget.another():
                raise _unsettled(key, trouble)

    async def _look(
        self, key: str, body: bytes, mode: Create | Addressed | IfMatch, budget: Budget
    ) -> Written | Lost | None:
        """What the object itself says of our write; None while the condition still holds."""
        while True:
            try:
                if isinstance(mode, Addressed):
                    return await self._present(key, len(body))
                return await self._read_back(key, body, mode)
            except Unavailable as error:
                if not await budget.another():
                    raise _unsettled(key, error) from error

    async def _read_back(self, key: str, body: bytes, mode: Create | IfMatch) -> Written | Lost | None:
        current = await self.inner.find(key)
        if current is None:
            return None if isinstance(mode, Create) else Lost(None)
        if current.body == body:
            return Written(current.version)
        if isinstance(mode, IfMatch) and current.version == mode.version:
            return None
        return Lost(current)

    async def _present(self, key: str, size: int) -> Written | None:
        try:
            found = await self.inner.head(key)
        except NotFound:
            return None
        if found.size != size:
            raise Corrupt(f"{key}: holds {found.size} bytes, but the bytes it is named for are {size}")
        return Written(found.version)


def _unsettled(key: str, trouble: Unavailable | None) -> Ambiguous:
    cause = str(trouble) if trouble is not None else "the store refuses a condition that holds"
    return Ambiguous(f"{key}: the write may or may not have landed ({cause})")
