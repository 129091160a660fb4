"""Gatherings: what collectors wrote down of many batches at once, against the manifests; and who was gathered when.

Errors: whatever is wrong with a gathering is a finding about it; only a store that does not answer fails a look.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from holdfast.base.aio import map_bounded
from holdfast.base.errors import Corrupt, HoldfastError, Incompatible, NotFound
from holdfast.base.findings import Look, Tally
from holdfast.ingest import layout
from holdfast.ingest.audit_rules import RULES
from holdfast.ingest.gathering import gather, manifests_in
from holdfast.ingest.manifest import AcceptedManifest
from holdfast.objects.store import Entry, Store

AT_ONCE = 16
HOURS_KEPT = 4


@dataclass(slots=True)
class Gathered:
    """When batches were gathered, by the store's clock; of the latest few hours of acceptance that were asked for."""

    store: Store
    _kept: OrderedDict[str, dict[str, int]] = field(default_factory=OrderedDict)

    async def when(self, manifest: AcceptedManifest) -> int | None:
        """None if no gathering has the batch."""
        hour = layout.hour_path(manifest.accepted_at_unix_ns)
        for again in (False, True):
            if hour not in self._kept or again:
                self._kept[hour] = await self._read(hour)
            self._kept.move_to_end(hour)
            found = self._kept[hour].get(manifest.identity.manifest_id)
            if found is not None:
                break
        while len(self._kept) > HOURS_KEPT:
            self._kept.popitem(last=False)
        return found

    async def _read(self, hour: str) -> dict[str, int]:
        """All of an hour. What cannot be read says nothing, and is a finding of its own."""
        found: dict[str, int] = {}
        async for page in self.store.list(f"{layout.GATHERINGS}{hour}"):
            for entry in page.entries:
                try:
                    manifests = manifests_in(await self.store.get(entry.key))
                except (NotFound, Corrupt, Incompatible):
                    continue
                found |= {each.identity.manifest_id: entry.modified_ns for each in manifests}
        return found


@dataclass(frozen=True, slots=True)
class GatheringCheck:
    store: Store
    look: Look

    async def gathering(self, entry: Entry, tally: Tally) -> None:
        """It is as it was written; of some, or all, every batch was accepted as it says."""
        name = layout.gathering_in(entry.key)
        if name is None:
            tally.find(RULES["foreign_object"], entry.key, "its name is not that of a gathering")
            return
        found = await self.store.find(entry.key)
        if found is None:
            return
        tally.checked["gatherings"] += 1
        try:
            manifests = manifests_in(found)
        except (Corrupt, Incompatible) as error:
            tally.find(RULES["corrupt_gathering"], entry.key, str(error))
            return
        if not manifests or gather(manifests, name.written_at_ns)[0] != entry.key:
            tally.find(RULES["corrupt_gathering"], entry.key, "it does not hold what its name says")
            return
        if self.look.closely(entry.key):
            tally.checked["gatherings followed"] += 1
            wrong = [each for each in await map_bounded(manifests, self._differs, limit=AT_ONCE) if each is not None]
            if wrong:
                told = f"{len(wrong)} of its {len(manifests)} batches, such as {min(wrong)}"
                tally.find(RULES["dangling_gathering"], entry.key, told)

    async def _differs(self, manifest: AcceptedManifest) -> str | None:
        found = await self.store.find(manifest.key)
        try:
            stands = None if found is None else AcceptedManifest.read(found)
        except HoldfastError:
            return None  # told of the manifest
        return None if stands == manifest else manifest.key
