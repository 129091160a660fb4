"""Events, claims and dead letters of a namespace against each other, and against the consumers' state. Reads alone.

An event costs one GET, and one more for each handler that is believed to be done with it; a claim one GET and one HEAD;
a dead letter two GETs. Nothing that cleanup has removed is missed: its boundary is read after whatever was not found.

Errors: a damaged object is a finding. Only a store that does not answer is raised.
"""

from dataclasses import dataclass

from holdfast.base import codec
from holdfast.base.audit import Look, Severity, Tally, rules
from holdfast.base.errors import Corrupt, HoldfastError, Incompatible, NotFound
from holdfast.base.ids import Ambient
from holdfast.bus import layout
from holdfast.bus.claim import Claim
from holdfast.bus.event import ANY_TYPE, Envelope
from holdfast.bus.publish import Boundary
from holdfast.bus.worker.digest import Digest, DigestShape, Section, is_settled
from holdfast.objects.store import Entry, Store

_RESTORE = "restore the object from a backup, a version or a replica of the store"
_STRAY = "find out who removed the event; then remove this: no worker will act on it"

RULES = {
    **rules(
        Severity.ERROR,
        unreadable_event=("an event cannot be read: no handler will have it", _RESTORE),
        corrupt_claim=("a claim cannot be read, or is that of another event or handler", _RESTORE),
        claim_without_event=("a claim on a missing event that no cleanup has removed", _STRAY),
        missing_effect=("an event that a settled claim emits is not there", "publish it again: the claim contains it"),
        letter_without_claim=("a dead letter of an event that was never claimed", _STRAY),
        letter_of_living=("a dead letter of a claim that is not dead", "find out who wrote it, then drop it"),
        digest_disagrees=("the digest believes that a handler is done with an event, and its claim does not say so",
                          "remove the digest: consumers derive it anew, and hand the event out"),
        corrupt_boundary=("how far cleanup has gone cannot be read", _RESTORE),
    ),
    **rules(
        Severity.WARNING,
        corrupt_digest=("the digest of a namespace cannot be read", "nothing: the next worker derives it again"),
        foreign_object=("an object in a prefix of ours whose name is none of ours", "find out who put it there"),
    ),
    **rules(
        Severity.INFORMATION,
        left_by_cleanup=("a claim on an event that cleanup has removed", "nothing: the next cleanup removes it"),
    ),
}  # fmt: skip


class Unreadable:
    """A claim that says nothing any more: that is a finding of its own."""


@dataclass(slots=True)
class NamespaceCheck:
    store: Store
    look: Look
    namespace: str
    digest: Digest | None = None

    @classmethod
    async def of(cls, store: Store, look: Look, namespace: str) -> "NamespaceCheck":
        """With the digest as it is now: what it lists as settled was settled before."""
        check = cls(store, look, namespace)
        await check.knowledge(Tally())
        return check

    async def knowledge(self, tally: Tally) -> None:
        """The digest and the boundary can be read."""
        key = layout.digest_key(self.namespace)
        found = await self.store.find(key)
        try:
            if found is not None:
                self.digest = DigestShape().read(codec.decode(found.body, key=key), key)
                tally.checked["digests"] += 1
        except (Corrupt, Incompatible) as error:
            tally.find(RULES["corrupt_digest"], key, str(error))
        try:
            await self._boundary()
        except HoldfastError as error:
            if error.kind not in ("corrupt", "incompatible"):
                raise
            tally.find(RULES["corrupt_boundary"], layout.boundary_key(self.namespace), str(error))

    async def event(self, entry: Entry, tally: Tally) -> None:
        name = layout.name_of(entry.key)
        if not layout.is_name(name) or entry.key != layout.event_key(self.namespace, name):
            tally.find(RULES["foreign_object"], entry.key, "its name is not that of an event")
            return
        found = await self.store.find(entry.key)
        if found is None:
            return
        tally.checked["events"] += 1
        try:
            envelope = Envelope.decode(found.body, key=entry.key)
        except Corrupt as error:
            tally.find(RULES["unreadable_event"], entry.key, str(error))
            return
        for handler, section in (self.digest or Digest()).sections.items():
            if _believed_done(section, name, envelope.type):
                await self._done(name, handler, entry.key, tally)

    async def _done(self, name: str, handler: str, event: str, tally: Tally) -> None:
        key = layout.claim_key(self.namespace, layout.event_id(name), handler)
        claim = await self._claim(key)
        if isinstance(claim, Unreadable) or (claim is not None and claim.settled):
            return
        if claim is None and not await self._there(event):
            return  # cleaned up since
        stands = "there is no claim" if claim is None else "its claim is not settled"
        tally.find(RULES["digest_disagrees"], event, f"handler {handler} is believed to be done; {stands}")

    async def claim(self, entry: Entry, tally: Tally) -> None:
        place = _place(entry.key)
        if place is None:
            tally.find(RULES["foreign_object"], entry.key, "its name is not that of a claim")
            return
        found = await self.store.find(entry.key)
        if found is None:
            return
        tally.checked["claims"] += 1
        try:
            claim = Claim.parse(codec.decode(found.body, key=entry.key), key=entry.key)
        except Corrupt as error:
            tally.find(RULES["corrupt_claim"], entry.key, str(error))
            return
        if (claim.event_id, claim.handler_id) != place:
            what = f"it is that of {claim.handler_id} on event {claim.event_id}"
            tally.find(RULES["corrupt_claim"], entry.key, what)
            return
        await self._claimed(claim, entry.key, tally)

    async def _claimed(self, claim: Claim, key: str, tally: Tally) -> None:
        name = claim.event_name
        if not layout.is_name(name):
            tally.checked["claims of other writers"] += 1  # which do not say where their event is stored
            return
        if not await self._there(layout.event_key(self.namespace, name)):
            rule = "left_by_cleanup" if await self._cleaned(name) else "claim_without_event"
            tally.find(RULES[rule], key, f"there is no {layout.event_key(self.namespace, name)}")
            return
        for document in claim.outbox if claim.ack_ns is not None else ():
            emitted = Envelope.parse(document, key=key)
            if not await self._there(emitted.key) and not await self._cleaned(emitted.name):
                tally.find(RULES["missing_effect"], key, f"there is no {emitted.key}")

    async def letter(self, entry: Entry, tally: Tally) -> None:
        place = _place(entry.key)
        found = await self.store.find(entry.key)
        if place is None:
            tally.find(RULES["foreign_object"], entry.key, "its name is not that of a dead letter")
            return
        event_id, handler = place
        if found is None:
            return  # dropped, or replayed
        tally.checked["dead letters"] += 1
        claim = await self._claim(layout.claim_key(self.namespace, event_id, handler))
        if claim is not None:
            if isinstance(claim, Claim) and claim.dead_ns is None:
                tally.find(RULES["letter_of_living"], entry.key, f"the claim of {handler} is not dead")
            return
        try:
            name = codec.decode(found.body, key=entry.key).get("event_name")
        except Corrupt:
            name = None
        if not isinstance(name, str) or not layout.is_name(name) or not await self._cleaned(name):
            tally.find(RULES["letter_without_claim"], entry.key, f"{handler} has no claim on event {event_id}")

    async def _claim(self, key: str) -> "Claim | Unreadable | None":
        found = await self.store.find(key)
        try:
            return None if found is None else Claim.parse(codec.decode(found.body, key=key), key=key)
        except Corrupt:
            return Unreadable()

    async def _there(self, key: str) -> bool:
        try:
            await self.store.head(key)
        except NotFound:
            return False
        return True

    async def _cleaned(self, name: str) -> bool:
        """Whether cleanup may have removed it. Its boundary goes first, so it is read last."""
        try:
            return layout.created_ns(name) <= await self._boundary()
        except (Corrupt, Incompatible):
            return True  # the boundary is a finding of its own

    async def _boundary(self) -> int:
        return await Boundary(self.store, self.namespace, Ambient.system()).read()


def _place(key: str) -> tuple[str, str] | None:
    """Event and handler in the key of a claim or a dead letter."""
    match key.split("/"):
        case [_, _, event_id, file] if file.endswith(".json"):
            return event_id, file.removesuffix(".json")
    return None


def _believed_done(section: Section, name: str, type_name: str) -> bool:
    """Whether consumers will not hand this event to the handler any more, though it takes such events."""
    takes = ANY_TYPE in section.types or type_name in section.types
    return takes and is_settled(section, name)
