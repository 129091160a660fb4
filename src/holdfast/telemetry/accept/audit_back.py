"""References and blobs that no manifest accounts for, each followed to what it should lead to. Reads alone.

An audit finds them by comparing listings with manifests; here the objects themselves are read. A blob is read because
its bytes contain the identity of their batch.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.base.aio import blocking
from holdfast.base.audit import Look, Tally
from holdfast.base.errors import Corrupt, HoldfastError, Incompatible, NotFound
from holdfast.objects.store import Entry, Store
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.audit import BY_BLOB
from holdfast.telemetry.accept.audit_rules import RULES
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.references import named_manifest
from holdfast.telemetry.accept.submit import inspect_frame

_BLOB_BY_TIME = re.compile(
    re.escape(layout.BLOBS_BY_TIME) + r"date=\d{4}-\d\d-\d\d/hour=\d\d/sha256=([0-9a-f]{64})\.json"
)
_BY_BLOB = re.compile(r"(?:accepted|quarantine)-by-blob/v1/sha256/([0-9a-f]{2})/([0-9a-f]{2})/([0-9a-f]{64})/.+\.json")


@dataclass(frozen=True, slots=True)
class Back:
    """Follows references back to manifests."""

    store: Store
    look: Look

    def is_ours(self, kind: str, key: str) -> bool:
        """Whether the name is that of such a reference."""
        match kind:
            case "by-time":
                return layout.is_by_time(key)
            case "blob-by-time":
                return _BLOB_BY_TIME.fullmatch(key) is not None
        found, identity = _BY_BLOB.fullmatch(key), layout.identity_in(key)
        if found is None or identity is None:
            return False
        named = layout.accepted_by_blob_key if kind == BY_BLOB else layout.conflict_by_blob_key
        return key == named(found[3], identity)

    async def follow(self, kind: str, key: str, tally: Tally) -> None:
        """Check one reference against the object that it refers to."""
        tally.checked["references followed"] += 1
        match kind:
            case "by-time":
                detail = await self._by_time(key)
                rule = "corrupt_by_time"
            case "blob-by-time":
                detail = await self._blob_by_time(key)
                rule = "dangling_blob_by_time"
            case "by-blob":
                detail = await self._by_blob(key)
                rule = "dangling_by_blob"
            case _:
                detail = await self._conflict_by_blob(key)
                rule = "dangling_conflict_by_blob"
        if detail is not None:
            tally.find(RULES[rule], key, detail)

    async def _by_time(self, key: str) -> str | None:
        """A reference whose manifest does not exist, or records another acceptance, was left by an attempt that failed
        or came second."""
        found = await self.store.find(key)
        try:
            if found is not None:
                named_manifest(found)
        except (Corrupt, Incompatible) as error:
            return str(error)
        return None

    async def _by_blob(self, key: str) -> str | None:
        identity, sha256 = layout.identity_in(key), _sha256_in(key)
        if identity is None or await self.store.find(key) is None:
            return None
        named = layout.accepted_key(identity)
        return await self._led(named, lambda manifest: manifest.frame_sha256 == sha256, "names other bytes")

    async def _conflict_by_blob(self, key: str) -> str | None:
        identity, sha256 = layout.identity_in(key), _sha256_in(key)
        if identity is None or await self.store.find(key) is None:
            return None
        named = layout.conflict_key(identity, sha256)
        return None if await self.store.find(named) is not None else f"there is no {named}"

    async def _blob_by_time(self, key: str) -> str | None:
        found = _BLOB_BY_TIME.fullmatch(key)
        if found is None or await self.store.find(key) is None:
            return None
        named = layout.blob_key(found[1])
        try:
            await self.store.head(named)
        except NotFound:
            return f"there is no {named}"
        return None

    async def _led(self, key: str, fits: Callable[[AcceptedManifest], bool], otherwise: str) -> str | None:
        """What is wrong with a reference to this manifest. A manifest that cannot be read is a finding of its own."""
        found = await self.store.find(key)
        if found is None:
            return f"there is no {key}"
        try:
            return None if fits(AcceptedManifest.read(found)) else f"{key} {otherwise}"
        except HoldfastError:
            return None

    # --- blobs ---

    async def evidence(self, entry: Entry, tally: Tally) -> bytes | None:
        """Check that the bytes of a blob that no manifest needs have the hash in its name."""
        sha256 = layout.blob_hash(entry.key)
        found = await self.store.find(entry.key)
        if sha256 is None or found is None:
            return None
        tally.checked["blobs read"] += 1
        body = found.body
        if await blocking(lambda: hashlib.sha256(body).hexdigest()) != sha256:
            tally.find(RULES["corrupt_blob"], entry.key, "its bytes are not those of its hash")
            return None
        return body

    async def loose(self, entry: Entry, tally: Tally) -> None:
        """Find the batch of a blob that no reference names."""
        body, sha256 = await self.evidence(entry, tally), layout.blob_hash(entry.key)
        if body is None:
            return
        head = await blocking(inspect_frame, body)
        if head is None:
            tally.find(RULES["foreign_blob"], entry.key, "its bytes are no frame that this client can read")
            return
        manifest = await self.store.find(layout.accepted_key(head.identity))
        if manifest is not None:
            try:
                if AcceptedManifest.read(manifest).frame_sha256 == sha256:
                    return
            except HoldfastError:
                return  # reported of the manifest itself
        tally.find(RULES["orphan_blob"], entry.key, f"the bytes of {head.identity}, which no manifest names")


def _sha256_in(key: str) -> str:
    found = _BY_BLOB.fullmatch(key)
    return found[3] if found is not None else ""
