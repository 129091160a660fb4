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
from tests.unit.pipeline.planted import Expected, Spot, cut, fault, first, flipped, gone, remark, rewrite, spoilt, stray

SHOP = "shop"

# --- runs ---


def at(key: str) -> Spot:
    async def spot(store: Store) -> tuple[str, str]:
        return key, key

    return spot


async def a_segment(store: Store) -> tuple[str, str]:
    history = await read_history(store, "long")
    assert history is not None
    ref = history.refs[0]
    key = runs.segment_key("long", ref.level, ref.first, ref.attempt)
    return key, key


def a_payload(run_id: str) -> Spot:
    async def spot(store: Store) -> tuple[str, str]:
        key = await first(store, runs.payload_folder(run_id))
        return key, key

    return spot


async def a_generation(store: Store) -> tuple[str, str]:
    history = await read_history(store, "around")
    assert history is not None
    key = str(history.state.start["previous"]["key"])
    return key, key


spoilt("missing_segment", gone, a_segment)
spoilt("corrupt_segment", flipped, a_segment)
spoilt("missing_payload", gone, a_payload("shared"))
spoilt("corrupt_payload", flipped, a_payload("long"), deep=True)
spoilt("missing_history", gone, a_generation)
spoilt("corrupt_history", flipped, a_generation)


@fault()
async def journal_that_lost_a_line(store: Store) -> Expected:
    key = runs.journal_key("answered")
    lines = (await store.get(key)).body.splitlines(keepends=True)
    await store.put(key, b"".join(lines[:1] + lines[2:]), OVERWRITE)
    return {("corrupt_journal", key)}


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


spoilt("foreign_object", stray, at("runs/long/stray.txt"))

# --- events ---


async def event_of(store: Store, type_name: str, order: str) -> str:
    async for key in store.keys(bus.event_folder(SHOP)):
        document = codec.decode((await store.get(key)).body, key=key)
        if document["type"] == type_name and document["payload"].get("order_id") == order:
            return key
    raise AssertionError(f"no {type_name} {order}")


def claim_of(event: str, handler: str) -> str:
    return bus.claim_key(SHOP, bus.event_id(bus.name_of(event)), handler)


async def an_event(store: Store) -> tuple[str, str]:
    event = await event_of(store, "audited.order", "o1")
    return event, event


async def with_a_claim(store: Store) -> tuple[str, str]:
    event = await event_of(store, "audited.order", "o1")
    return event, claim_of(event, "bill")


async def a_claim(store: Store) -> tuple[str, str]:
    claim = claim_of(await event_of(store, "audited.order", "o1"), "bill")
    return claim, claim


async def its_claim(store: Store) -> tuple[str, str]:
    event = await event_of(store, "audited.order", "o1")
    return claim_of(event, "bill"), event


async def a_letter(store: Store) -> tuple[str, str]:
    """Of a claim that is alive."""
    event = await event_of(store, "audited.order", "o1")
    key = bus.dead_letter_key(SHOP, bus.event_id(bus.name_of(event)), "bill")
    return key, key


async def another_event(store: Store, key: str) -> None:
    await rewrite(store, key, event_id="another")


spoilt("claim_without_event", gone, with_a_claim)
spoilt("unreadable_event", cut, an_event)
spoilt("corrupt_claim", cut, a_claim)
spoilt("corrupt_claim", another_event, a_claim)
spoilt("digest_disagrees", gone, its_claim)  # consumers believe that it is done; it was never claimed
spoilt("letter_of_living", stray, a_letter)
spoilt("corrupt_digest", cut, at(bus.digest_key(SHOP)))
spoilt("corrupt_boundary", cut, at(bus.boundary_key(SHOP)))
spoilt("foreign_object", stray, at(f"{bus.event_folder(SHOP)}stray.txt"))


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


@remark
async def cleanup_that_died(store: Store) -> Expected:
    """Its boundary is past the event, and the event is gone; the claim is still there."""
    event = await event_of(store, "audited.order", "o1")
    name, event_id = bus.name_of(event), bus.event_id(bus.name_of(event))
    ghost = f"2020-01-01T00-00-00.000000+00-00_{event_id}-old"
    claim = bus.claim_key(SHOP, bus.event_id(ghost), "bill")
    document = (await store.get(claim_of(event, "bill"))).body.decode().replace(name, ghost)
    document = document.replace(f'"event_id":"{event_id}"', f'"event_id":"{bus.event_id(ghost)}"')
    await store.put(claim, document.encode(), CREATE)
    return {("left_by_cleanup", claim)}


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


spoilt("ontology_head_missing", gone, at(ontology.HEAD))
spoilt("ontology_head_unreadable", cut, at(ontology.HEAD))
