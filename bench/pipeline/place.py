"""A store in a folder with a fleet's batches, as collectors would have left it, written as the plain files it is."""

import hashlib
import shutil
from pathlib import Path

from bench.pipeline.fleet import HOUR, HOUR_NS, Fleet
from holdfast.objects.open import open_store
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.references import of_accepted
from holdfast.telemetry.identity import BatchIdentity

DERIVED = ("rollup", "index", "manifests", "batches-by-hour", "meta/pipeline")


async def fill(folder: Path, fleet: Fleet) -> int:
    """How many batches there are."""
    async with open_store(f"file:{folder}") as store:
        await store.put("meta/bench.json", b"{}")
    count = 0
    for number, (identity, frame) in enumerate(fleet.frames()):
        own = BatchIdentity(identity.agent_id, identity.boot_id, identity.seq_start, identity.seq_end)
        digest = hashlib.sha256(frame).hexdigest()
        accepted_at = (HOUR + 1) * HOUR_NS + number
        key = layout.blob_key(digest)
        records = {"samples": identity.seq_end - identity.seq_start + 1}
        manifest = AcceptedManifest(own, digest, len(frame), key, accepted_at, "bench", 1, 1, records, "bench", "bench")
        _write(folder / key, frame)
        _write(folder / manifest.key, manifest.encode())
        for reference in of_accepted(manifest):
            _write(folder / reference.key, reference.body)
        count += 1
    return count


def forget(folder: Path) -> None:
    """Everything that the pipeline has made."""
    for name in DERIVED:
        shutil.rmtree(folder / name, ignore_errors=True)


def forget_rollups(folder: Path) -> None:
    """Rollups alone, so that they are made again from what the reconciler has found."""
    shutil.rmtree(folder / "rollup", ignore_errors=True)
    shutil.rmtree(folder / "manifests", ignore_errors=True)


def _write(path: Path, body: bytes) -> None:
    try:
        path.write_bytes(body)
    except FileNotFoundError:
        path.parent.mkdir(parents=True)
        path.write_bytes(body)
