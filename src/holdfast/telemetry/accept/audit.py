"""Checks of accepted batches and conflicts: each object against the objects that it names, and those that name it.

A batch costs one GET for its manifest, one HEAD for its bytes (one GET if they are read) and one GET for each of its
three references, which are compared with the references that follow from the manifest. An audit checks the batches
whose listings do not agree with their manifests, and a sample of the others. References and blobs that no manifest
names are followed back. Nothing is written.

Errors: a fault of one batch is a finding; only a store that does not respond is an error.
"""

import hashlib
import re
from dataclasses import dataclass

from holdfast.base import codec
from holdfast.base.aio import blocking
from holdfast.base.audit import Look, Severity, Tally, rules
from holdfast.base.errors import Corrupt, HoldfastError, Incompatible, Invalid, NotFound
from holdfast.objects.store import Entry, Object, Store
from holdfast.telemetry.accept import layout, references
from holdfast.telemetry.accept.accept import inspect_frame
from holdfast.telemetry.accept.conflicts import Resolutions
from holdfast.telemetry.accept.expired import find_expired
from holdfast.telemetry.accept.manifest import AcceptedManifest, ConflictManifest
from holdfast.telemetry.accept.references import Reference, named_manifest
from holdfast.telemetry.frame import Batch, FrameInvalid, Limits, decode
from holdfast.telemetry.identity import BatchIdentity

_RESTORE = "restore the object from a backup, a version or a replica of the store"
_REFER = "holdfast pipeline run reconcile --full: it writes what is missing"
_STRAY = "find out who wrote it, then remove it: nothing depends on it"

RULES = {
    **rules(
        Severity.ERROR,
        corrupt_manifest=("an accepted manifest cannot be read, or is that of another batch", _RESTORE),
        unknown_schema=("a record with an unknown schema", "upgrade holdfast, or find out who wrote it"),
        wrong_blob_key=("a manifest names a blob key that does not have the hash of its bytes", _RESTORE),
        missing_blob=("an accepted manifest names bytes that do not exist", _RESTORE),
        wrong_length=("the bytes of a batch have another length than was accepted", _RESTORE),
        corrupt_blob=("the bytes of a blob do not have the hash in its name", _RESTORE),
        unreadable_frame=(
            "the bytes are those that were accepted, and are no frame that this version can read",
            "upgrade holdfast",
        ),
        other_identity=("the bytes of a batch are those of another batch", "find out who wrote the manifest"),
        wrong_records=("a manifest counts other records than its bytes have", "find out who wrote the manifest"),
        missing_by_time=("no reference by time names an accepted batch: nothing will be derived from it", _REFER),
        missing_by_blob=("no reference says that an accepted batch needs its bytes", _REFER),
        missing_blob_by_time=("no reference by time leads to the bytes of an accepted batch", _REFER),
        wrong_reference=("a reference differs from its manifest", f"remove it, then {_REFER}"),
        corrupt_by_time=("a reference by time names no manifest", _STRAY),
        dangling_by_blob=("a reference says that a batch needs these bytes, and it does not", _STRAY),
        dangling_blob_by_time=("a reference by time leads to no bytes", _STRAY),
        dangling_conflict_by_blob=("a reference says that a conflict needs these bytes, and there is none", _STRAY),
        corrupt_conflict=("the record of a conflict cannot be read, or is that of another", _RESTORE),
        conflict_without_accepted=("a conflict with a batch other than the accepted one", _RESTORE),
        missing_evidence=("the bytes of an unresolved conflict are missing", _RESTORE),
    ),
    **rules(
        Severity.WARNING,
        missing_conflict_by_blob=("no reference says that a conflict needs its bytes", _REFER),
        resolution_of_nothing=(
            "a decision about a conflict that is not recorded",
            "find out who removed the conflict",
        ),
        foreign_object=("an object in a prefix of ours whose name has another form", "find out who put it there"),
        foreign_blob=("bytes under their own hash that are no frame", "upgrade holdfast, or find out who put it there"),
    ),
    **rules(
        Severity.INFORMATION,
        orphan_blob=("bytes that no manifest names: left behind, or still being accepted", "holdfast gc treats them"),
    ),
}


REFERENCES = {
    layout.ACCEPTED_BY_TIME: "by-time",
    layout.ACCEPTED_BY_BLOB: "by-blob",
    layout.BLOBS_BY_TIME: "blob-by-time",
    layout.CONFLICTS_BY_BLOB: "conflict-by-blob",
}
"""Prefixes of references, with the names under which they are counted."""
_BLOB_BY_TIME = re.compile(
    re.escape(layout.BLOBS_BY_TIME) + r"date=\d{4}-\d\d-\d\d/hour=\d\d/sha256=[0-9a-f]{64}\.json"
)
_SHA256 = re.compile(r"[/=]([0-9a-f]{64})[/.]")


@dataclass(slots=True)
class Seen:
    """The result of checking one batch."""

    manifest: AcceptedManifest | None = None
    batch: Batch | None = None
    """Its decoded contents, if its bytes were read and are valid."""
    reconciled: bool = False
    """Whether the reconciler has processed it."""


@dataclass(slots=True)
class BatchCheck:
    store: Store
    look: Look
    limits: Limits
    resolutions: Resolutions
    reconciled_ns: int = 0
    """The reconciler has processed all references by time that the store had before this moment."""

    async def accepted(self, entry: Entry, tally: Tally) -> Seen:
        """Check one accepted manifest, and the objects that belong to it."""
        key = entry.key
        identity = layout.identity_in(key)
        if identity is None or key != layout.accepted_key(identity):
            await self.foreign(entry, tally)
            return Seen()
        found = await self.store.find(key)
        if found is None:
            return Seen()  # listed, and removed since
        tally.checked["accepted"] += 1
        try:
            manifest = AcceptedManifest.read(found)
        except Incompatible as error:
            tally.find(RULES["unknown_schema"], key, str(error))
            return Seen()
        except Corrupt as error:
            tally.find(RULES["corrupt_manifest"], key, str(error))
            return Seen()
        seen = Seen(manifest)
        seen.batch = await self._blob(manifest, tally)
        seen.reconciled = await self._references(manifest, tally)
        return seen

    async def _blob(self, manifest: AcceptedManifest, tally: Tally) -> Batch | None:
        key, blob = manifest.key, manifest.raw_blob_key
        if layout.blob_hash(blob) != manifest.frame_sha256:
            tally.find(RULES["wrong_blob_key"], key, f"{blob} is not where bytes of {manifest.frame_sha256} lie")
            return None
        closely = self.look.closely(blob)
        try:
            body = (await self.store.get(blob)).body if closely else None
            size = len(body) if body is not None else (await self.store.head(blob)).size
        except NotFound:
            if await find_expired(self.store, manifest.identity) is not None:
                tally.checked["expired"] += 1  # recorded as expired
            else:
                tally.find(RULES["missing_blob"], key, f"its bytes are not at {blob}")
            return None
        if size != manifest.frame_bytes:
            detail = f"{blob} has {size} bytes, and {manifest.frame_bytes} were accepted"
            tally.find(RULES["wrong_length"], key, detail)
            return None
        if body is None:
            return None
        tally.checked["blobs read"] += 1
        return await self._bytes(manifest, body, tally)

    async def _bytes(self, manifest: AcceptedManifest, body: bytes, tally: Tally) -> Batch | None:
        key = manifest.key
        if await blocking(lambda: hashlib.sha256(body).hexdigest()) != manifest.frame_sha256:
            tally.find(
                RULES["corrupt_blob"], key, f"{manifest.raw_blob_key}: its bytes are not those that were accepted"
            )
            return None
        try:
            batch = await blocking(decode, body, self.limits)
            identity = batch.identity
        except (FrameInvalid, Invalid) as error:
            tally.find(RULES["unreadable_frame"], key, f"{manifest.raw_blob_key}: {error}")
            return None
        if identity != manifest.identity:
            tally.find(RULES["other_identity"], key, f"its bytes are those of {identity}")
            return None
        counted = sum(manifest.records.values())
        if manifest.records and counted != len(batch):
            tally.find(RULES["wrong_records"], key, f"it counts {counted} records, and its bytes have {len(batch)}")
        return batch

    async def _references(self, manifest: AcceptedManifest, tally: Tally) -> bool:
        """Whether the reconciler has processed the batch. Only then must the two references that it writes exist."""
        by_time, by_blob, blob_by_time = references.of_accepted(manifest)
        found = await self._reference(by_time, manifest.key, tally)
        followed = found is not None and found.modified_ns < self.reconciled_ns
        if found is None:
            tally.find(RULES["missing_by_time"], manifest.key, f"there is no {by_time.key}")
        tally.checked["not reconciled yet"] += found is not None and not followed
        for reference, rule in ((by_blob, "missing_by_blob"), (blob_by_time, "missing_blob_by_time")):
            missing = await self._reference(reference, manifest.key, tally) is None
            if missing and followed and await find_expired(self.store, manifest.identity) is None:
                tally.find(RULES[rule], manifest.key, f"there is no {reference.key}")
        return followed

    async def _reference(self, wanted: Reference, of: str, tally: Tally) -> Object | None:
        found = await self.store.find(wanted.key)
        if found is None:
            return None
        tally.checked["references"] += 1
        if not _matches(found, wanted):
            tally.find(RULES["wrong_reference"], wanted.key, f"it differs from the reference that follows from {of}")
        return found

    # --- conflicts ---

    async def conflict(self, entry: Entry, tally: Tally) -> None:
        """Check one recorded conflict against the accepted batch and the refused bytes."""
        key = entry.key
        identity, sha256 = layout.identity_in(key), key.rpartition("/")[2].removesuffix(".json")
        if identity is None or len(sha256) != 64 or key != f"{layout.conflict_folder(identity)}{sha256}.json":
            await self.foreign(entry, tally)
            return
        found = await self.store.find(key)
        if found is None:
            return
        tally.checked["conflicts"] += 1
        try:
            conflict = ConflictManifest.read(found)
        except Incompatible as error:
            tally.find(RULES["unknown_schema"], key, str(error))
            return
        except Corrupt as error:
            tally.find(RULES["corrupt_conflict"], key, str(error))
            return
        await self._contested(conflict, tally)
        wanted = references.of_conflict(conflict)
        if await self._reference(wanted, key, tally) is None:
            tally.find(RULES["missing_conflict_by_blob"], key, f"there is no {wanted.key}")

    async def _contested(self, conflict: ConflictManifest, tally: Tally) -> None:
        accepted = await self.store.find(layout.accepted_key(conflict.identity))
        if accepted is None:
            tally.find(RULES["conflict_without_accepted"], conflict.key, "nothing was accepted under this identity")
        else:
            try:
                accepted_sha256 = AcceptedManifest.read(accepted).frame_sha256
            except (Corrupt, Incompatible):
                accepted_sha256 = conflict.accepted_frame_sha256  # a finding about the manifest
            expected = conflict.accepted_frame_sha256
            if accepted_sha256 != expected or accepted_sha256 == conflict.submitted_frame_sha256:
                detail = f"{accepted_sha256} was accepted, and the record names {expected}"
                tally.find(RULES["conflict_without_accepted"], conflict.key, detail)
        try:
            await self.store.head(layout.blob_key(conflict.submitted_frame_sha256))
        except NotFound:
            if not await self.resolutions.may_go(conflict.identity, conflict.submitted_frame_sha256):
                detail = f"{conflict.submitted_raw_blob_key} is not there, and there is no decision"
                tally.find(RULES["missing_evidence"], conflict.key, detail)

    async def resolution(self, entry: Entry, tally: Tally) -> None:
        """Check a decision: its conflict is recorded, unless the decision was final, after which garbage collection
        removes the record."""
        tally.checked["resolutions"] += 1
        path = entry.key.removeprefix(layout.RESOLUTIONS)
        identity, sha256 = layout.identity_in(entry.key), path.rpartition("/")[2].removesuffix(".json")
        if identity is None or entry.key != layout.resolution_key(identity, sha256):
            await self.foreign(entry, tally)
        elif await self.store.find(f"{layout.CONFLICTS}{path}") is None and not await self._is_final(identity, sha256):
            tally.find(RULES["resolution_of_nothing"], entry.key, f"there is no {layout.CONFLICTS}{path}")

    async def _is_final(self, identity: BatchIdentity, sha256: str) -> bool:
        try:
            return await self.resolutions.may_go(identity, sha256)
        except (Corrupt, Incompatible):
            return False

    # --- references, followed back ---

    async def reference(self, entry: Entry, tally: Tally) -> None:
        """Check one reference against the object that it refers to."""
        key = entry.key
        found, identity, sha256 = await self.store.find(key), layout.identity_in(key), _sha256_in(key)
        if found is None:
            return
        tally.checked["references followed"] += 1
        if layout.is_by_time(key):
            # Its manifest may not exist, or record another acceptance, if the attempt failed or came second.
            rule, detail = "corrupt_by_time", _names_no_manifest(found)
        elif sha256 is not None and _BLOB_BY_TIME.fullmatch(key):
            rule, detail = "dangling_blob_by_time", await self._missing(layout.blob_key(sha256))
        elif sha256 is None or identity is None:
            await self.foreign(entry, tally)
            return
        elif key == layout.accepted_by_blob_key(sha256, identity):
            rule, detail = "dangling_by_blob", await self._by_blob(identity, sha256)
        elif key == layout.conflict_by_blob_key(sha256, identity):
            rule, detail = "dangling_conflict_by_blob", await self._missing(layout.conflict_key(identity, sha256))
        else:
            await self.foreign(entry, tally)
            return
        if detail is not None:
            tally.find(RULES[rule], key, detail)

    async def foreign(self, entry: Entry, tally: Tally) -> None:
        tally.find(RULES["foreign_object"], entry.key, "its name is none of ours")

    async def _missing(self, key: str) -> str | None:
        try:
            await self.store.head(key)
        except NotFound:
            return f"there is no {key}"
        return None

    async def _by_blob(self, identity: BatchIdentity, sha256: str) -> str | None:
        found = await self.store.find(layout.accepted_key(identity))
        if found is None:
            return f"there is no {layout.accepted_key(identity)}"
        try:
            same = AcceptedManifest.read(found).frame_sha256 == sha256
        except HoldfastError:
            return None  # a finding about the manifest
        return None if same else f"{found.key} names other bytes"

    # --- blobs that no manifest needs ---

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
                return  # a finding about the manifest
        tally.find(RULES["orphan_blob"], entry.key, f"the bytes of {head.identity}, which no manifest names")


def _matches(found: Object, wanted: Reference) -> bool:
    """Whether a reference has all fields that follow from the manifest; a plain writer's may have more."""
    if found.body == wanted.body:
        return True
    try:
        document = codec.decode(found.body, key=found.key)
    except Corrupt:
        return False
    expected = codec.decode(wanted.body, key=wanted.key)
    return all(document.get(name) == value for name, value in expected.items())


def _names_no_manifest(reference: Object) -> str | None:
    try:
        named_manifest(reference)
    except (Corrupt, Incompatible) as error:
        return str(error)
    return None


def _sha256_in(key: str) -> str | None:
    found = _SHA256.search(key)
    return None if found is None else found[1]
