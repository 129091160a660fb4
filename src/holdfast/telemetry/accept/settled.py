"""Batches whose numbers are settled: whatever shares a sequence number with one of these loses it, wherever it lies.

    settled/v1/agent={hex}/boot={hex}/{start}-{end}.json    beside the manifest of the same identity

Of two batches that share numbers the one of the lower identity counts them, as long as both can be read. Before an hour
is sealed, so that what it counts stays counted though bytes go, all of its batches are settled: a batch that comes
later, of whatever identity, finds these numbers taken. The record is created once and never deleted. It names the
numbers that the batch has, where they are not all of its range, and the hours in which it has records.

Errors: ``Corrupt`` for a record that cannot be read; ``Incompatible`` for a schema that this client does not know.
"""

from dataclasses import dataclass

from holdfast.base import codec
from holdfast.base.codec import MALFORMED, Document
from holdfast.base.errors import Corrupt
from holdfast.objects.store import ADDRESSED, Object, Store
from holdfast.telemetry.accept import layout
from holdfast.telemetry.identity import BatchIdentity

SCHEMA = "holdfast.settled_batch.v1"
Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Settled:
    identity: BatchIdentity
    frame_sha256: str
    hours: tuple[int, ...]
    """Counted from 1970, in order."""
    numbers: Ranges | None = None
    """As inclusive ranges; None if they are all from the first to the last."""

    @property
    def ranges(self) -> Ranges:
        return self.numbers if self.numbers is not None else ((self.identity.seq_start, self.identity.seq_end),)

    def document(self) -> Document:
        identity = self.identity
        found: Document = {
            "schema": SCHEMA,
            "agent_id": identity.agent_id,
            "boot_id": identity.boot_id,
            "seq_start": identity.seq_start,
            "seq_end": identity.seq_end,
            "frame_sha256": self.frame_sha256,
            "hours": list(self.hours),
        }
        return found if self.numbers is None else {**found, "numbers": [list(each) for each in self.numbers]}

    @classmethod
    def read(cls, found: Object) -> "Settled":
        document = codec.decode_schema(found.body, SCHEMA, key=found.key)
        try:
            ends = (int(document["seq_start"]), int(document["seq_end"]))
            identity = BatchIdentity(str(document["agent_id"]), str(document["boot_id"]), *ends)
            numbers = document.get("numbers")
            return cls(
                identity,
                str(document["frame_sha256"]),
                tuple(map(int, document["hours"])),
                None if numbers is None else tuple((int(first), int(last)) for first, last in numbers),
            )
        except MALFORMED as error:
            raise Corrupt(f"{found.key}: not the record of a settled batch ({error!r})") from error


async def settle(store: Store, settled: Settled) -> None:
    """Put it on record. Its bytes follow from the batch, so what is there says the same."""
    await store.put(layout.settled_key(settled.identity), codec.encode(settled.document()), ADDRESSED)


async def find_settled(store: Store, identity: BatchIdentity) -> Settled | None:
    found = await store.find(layout.settled_key(identity))
    return None if found is None else Settled.read(found)
