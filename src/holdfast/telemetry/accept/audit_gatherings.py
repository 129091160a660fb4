"""Gatherings: what collectors wrote down of many batches at once, against the manifests. Reads alone.

Errors: whatever is wrong with a gathering is a finding about it; only a store that does not answer fails a look.
"""

from dataclasses import dataclass

from holdfast.base.aio import map_bounded
from holdfast.base.audit import Look, Tally
from holdfast.base.errors import Corrupt, HoldfastError, Incompatible
from holdfast.objects.store import Entry, Store
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.audit_rules import RULES
from holdfast.telemetry.accept.gathering import gather, manifests_in
from holdfast.telemetry.accept.manifest import AcceptedManifest

AT_ONCE = 16


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
