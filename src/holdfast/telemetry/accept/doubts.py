"""Attempts of this process that ended without an answer: if such a manifest is met later, it was ours after all.

Without this a collector that accepted a batch, and was not told, would call the sender's next try a duplicate, and
nothing that follows from an acceptance would ever happen in it.
"""

from collections import OrderedDict
from collections.abc import Collection

from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.identity import BatchIdentity

MOST = 10_000
"""Identities remembered; forgetting one only leaves its effects to the reconciler."""


class Doubts:
    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._attempts: OrderedDict[BatchIdentity, set[str]] = OrderedDict()

    def add(self, attempt: AcceptedManifest) -> None:
        """``attempt`` has ended, and may have landed. One still under way is no doubt: whoever waits will hear."""
        if attempt.write_id is not None:
            self._attempts.setdefault(attempt.identity, set()).add(attempt.write_id)
        while len(self._attempts) > self._most:
            self._attempts.popitem(last=False)

    def of(self, identity: BatchIdentity) -> Collection[str]:
        return self._attempts.get(identity, ())

    def settle(self, identity: BatchIdentity) -> None:
        """A manifest of this identity was seen. It stays for ever, so no other attempt matters any more."""
        self._attempts.pop(identity, None)
