"""Faults of runs, events and the ontology; see ``planted``."""

import json

from holdfast.base import codec
from holdfast.bus import layout as bus
from holdfast.objects.store import CREATE, OVERWRITE, Store
from holdfast.ontology.format import layout as ontology
from holdfast.runs import layout as runs
from holdfast.runs.journal.history import read_history
from holdfast.runs.journal.index import RunIndex
from holdfast.runs.journal.summary import index_key, summarise
from tests.unit.pipeline.planted import Expected, cut, fault, first, rewrite

# --- runs ---


async def flip(store: Store, key: str) -> None:
    body = bytearray((await store.get(key)).body)
    body[len(body) // 2] ^= 1
    await store.put(key, bytes(body), OVERWRITE)


async def a_segment(store: Store) -> str:
    history = await read_history(store, "long")
    assert history is not None
    ref = history.refs[0]
    return runs.segment_key("long", ref.level, ref.first, ref.attempt)


@fault()
async def missing_segment(store: Store) -> Expected:
    key = await a_segment(store)
    await store.delete(key)
    return {("missing_segment", key)}


@fault()
async def flipped_bit_in_a_segment(store: Store) -> Expected:
    key = await a_segment(store)
    await flip(store, key)
    return {("corrupt_segment", key)}


@fault()
async def missing_payload(store: Store) -> Expected:
    """The fork needs it too: it is one payload, and named once."""
    key = await first(store, runs.payload_folder("shared"))
    await store.delete(key)
    return {("missing_payload", key)}


@fault(deep=True)
async def flipped_bit_in_a_payload(store: Store) -> Expected:
    key = await first(store, runs.payload_folder("long"))
    await flip(store, key)
    return {("corrupt_payload", key)}


@fault()
async def truncated_journal(store: Store) -> Expected:
    key = runs.journal_key("answered")
    body = (await store.get(key)).body
    await store.put(key, body[:-20], OVERWRITE)
    return {("corrupt_journal", key)}


@fault()
async def journal_that_lost_a_line(store: Store) -> Expected:
    key = runs.journal_key("answered")
    lines = (await store.get(key)).body.splitlines(keepends=True)
    await store.put(key, b"".join(lines[:1] + lines[2:]), OVERWRITE)
    return {("corrupt_journal", key)}


@fault()
async def fork_that_nobody_knows(store: Store) -> Expected:
    await store.delete(runs.fork_key("shared", "forked"))
    return {("unregistered_fork", runs.journal_key("forked"))}


@fault()
async def run_without_its_place_in_the_index(store: Store) -> Expected:
    for run_id in ("long", "waiting"):
        history = await read_history(store, run_id)
        assert history is not None
        await store.delete(index_key(summarise(run_id, history.state)))
    return {("index_missing", runs.journal_key(run_id)) for run_id in ("long", "waiting")}


@fault()
async def index_of_no_run(store: Store) -> Expected:
    history = await read_history(store, "long")
    assert history is not None
    await RunIndex(store).note("ghost", history.state)
    return {("index_of_no_run", index_key(summarise("ghost", history.state)))}


@fault()
async def lost_generation(store: Store) -> Expected:
    history = await read_history(store, "around")
    assert history is not None
    key = str(history.state.start["previous"]["key"])
    await store.delete(key)
    return {("missing_history", key)}


@fault()
async def forged_generation(store: Store) -> Expected:
    history = await read_history(store, "around")
    assert history is not None
    key = str(history.state.start["previous"]["key"])
    await flip(store, key)
    return {("corrupt_history", key)}


@fault()
async def foreign_object_of_a_run(store: Store) -> Expected:
    await store.put("runs/long/stray.txt", b"hello", CREATE)
    return {("foreign_object", "runs/long/stray.txt")}


# --- events ---

SHOP = "shop"


async def event_of(store: Store, type_name: str, order: str) -> str:
    async for key in store.keys(bus.event_folder(SHOP)):
        document = codec.decode((await store.get(key)).body, key=key)
        if document["type"] == type_name and document["payload"].get("order_id") == order:
            return key
    raise AssertionError(f"no {type_name} {order}")


def claim_of(event: str, handler: str) -> str:
    return bus.claim_key(SHOP, bus.event_id(bus.name_of(event)), handler)


@fault()
async def claim_without_event(store: Store) -> Expected:
    event = await event_of(store, "audited.order", "o1")
    await store.delete(event)
    return {("claim_without_event", claim_of(event, "bill"))}


@fault()
async def truncated_event(store: Store) -> Expected:
    event = await event_of(store, "audited.order", "o1")
    await cut(store, event)
    return {("unreadable_event", event)}


@fault()
async def truncated_claim(store: Store) -> Expected:
    key = claim_of(await event_of(store, "audited.order", "o1"), "bill")
    await cut(store, key)
    return {("corrupt_claim", key)}


@fault()
async def claim_of_another_event(store: Store) -> Expected:
    key = claim_of(await event_of(store, "audited.order", "o1"), "bill")
    await rewrite(store, key, event_id="another")
    return {("corrupt_claim", key)}


@fault()
async def event_that_nobody_will_handle(store: Store) -> Expected:
    """Consumers believe that it is done; it was never claimed."""
    event = await event_of(store, "audited.order", "o1")
    await store.delete(claim_of(event, "bill"))
    return {("digest_disagrees", event)}


@fault()
async def claim_that_is_not_settled(store: Store) -> Expected:
    event = await event_of(store, "audited.invoice", "o1")
    await rewrite(store, claim_of(event, "post"), ack_at=None)
    return {("digest_disagrees", event)}


@fault()
async def effect_that_never_came(store: Store) -> Expected:
    order, invoice = await event_of(store, "audited.order", "o1"), await event_of(store, "audited.invoice", "o1")
    await store.delete(invoice)
    return {("missing_effect", claim_of(order, "bill")), ("claim_without_event", claim_of(invoice, "post"))}


@fault()
async def dead_letter_without_claim(store: Store) -> Expected:
    key = await first(store, bus.dead_letter_folder(SHOP))
    _, _, event_id, handler = key.removesuffix(".json").split("/")
    ghost = bus.dead_letter_key(SHOP, event_id, f"{handler}-2")
    await store.put(ghost, (await store.get(key)).body, CREATE)
    return {("letter_without_claim", ghost)}


@fault()
async def dead_letter_of_a_living_claim(store: Store) -> Expected:
    event = await event_of(store, "audited.order", "o1")
    key = bus.dead_letter_key(SHOP, bus.event_id(bus.name_of(event)), "bill")
    await store.put(key, b"{}", CREATE)
    return {("letter_of_living", key)}


@fault()
async def truncated_digest(store: Store) -> Expected:
    await cut(store, bus.digest_key(SHOP))
    return {("corrupt_digest", bus.digest_key(SHOP))}


@fault()
async def truncated_boundary(store: Store) -> Expected:
    await cut(store, bus.boundary_key(SHOP))
    return {("corrupt_boundary", bus.boundary_key(SHOP))}


@fault()
async def foreign_object_among_events(store: Store) -> Expected:
    key = f"{bus.event_folder(SHOP)}stray.txt"
    await store.put(key, b"hello", CREATE)
    return {("foreign_object", key)}


# --- ontology ---


async def chain(store: Store) -> dict[int, str]:
    """Commit -> its manifest, from the head down."""
    head = json.loads((await store.get(ontology.HEAD)).body)
    found: dict[int, str] = {}
    path = head["manifest_path"]
    while path is not None:
        document = json.loads((await store.get(path)).body)
        found[document["commit_id"]] = path
        path = document.get("parent_manifest_path")
    return found


@fault()
async def forked_chain(store: Store) -> Expected:
    """Two commits claim one parent: one of them, with everything in it, is on the chain no more."""
    manifests = await chain(store)
    await rewrite(store, manifests[5], parent_manifest_path=manifests[3])
    return {("ontology_chain_break", manifests[5])}


@fault()
async def missing_file_of_a_commit(store: Store) -> Expected:
    manifest = (await chain(store))[3]
    path = json.loads((await store.get(manifest)).body)["files"][0]["path"]
    await store.delete(path)
    return {("ontology_file_missing", path)}


@fault()
async def lost_head(store: Store) -> Expected:
    await store.delete(ontology.HEAD)
    return {("ontology_head_missing", ontology.HEAD)}


@fault()
async def truncated_head(store: Store) -> Expected:
    await cut(store, ontology.HEAD)
    return {("ontology_head_unreadable", ontology.HEAD)}
