"""The pipeline's own records: runs of its jobs, and of what garbage collection removed, past ``retention.records_s``.

The record of an expiry (``expired/v1/``) is none of these: it stays for ever.
"""

from holdfast.base.ids import Ambient
from holdfast.objects.store import Store
from holdfast.pipeline.gc import record, runs
from holdfast.pipeline.gc.options import Ask
from holdfast.pipeline.gc.record import GC, Sweep

OLD = "a record older than records are kept"


async def shards(store: Store) -> list[str]:
    return ["own"]


async def sweep(store: Store, ambient: Ambient, ask: Ask, out: Sweep) -> None:
    age_ns = ask.options.records_ns
    if age_ns is None:
        return
    for run_id in await record.runs(store):
        if run_id == ask.run_id:
            continue
        entries = [entry async for page in store.list(f"{GC}{run_id}/") for entry in page.entries]
        if all(entry.modified_ns <= ask.now_ns - age_ns for entry in entries):
            for entry in entries:
                if not await out.remove(entry.key, entry.size, OLD):
                    return
    await out.flush()
    await runs.expire_own(store, ambient, ask, out)
