"""One authority per place: who is let in, who is refused, and how a copy becomes one of its own."""

import pytest

from holdfast.base import codec
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, NotFound, Refused
from holdfast.objects.place import Place
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.authority import (
    Acceptance,
    Authority,
    add_alias,
    open_authority,
    promote,
    read_authority,
)
from tests.unit.telemetry.accept.accept_desk import AcceptDesk

HOME = Place("s3", "http://one:9000", "fleet", "telemetry")
COPY = Place("s3", "http://two:9000", "fleet", "telemetry")
STRICT, SPOOL = Acceptance.S3_MANIFEST, Acceptance.LOCAL_SPOOL


async def found(desk: AcceptDesk, place: Place = HOME, mode: Acceptance = STRICT, **options: str | bool) -> Authority:
    return await open_authority(desk.store(), desk.ambient(), place, mode, **options)  # type: ignore[arg-type]  # by name


async def test_the_first_collector_creates_the_authority_and_the_others_use_it() -> None:
    desk = AcceptDesk()
    first = await found(desk)
    assert await found(desk) == first
    document = codec.decode(desk.shelf.objects[layout.AUTHORITY].body, key=layout.AUTHORITY)
    assert {"endpoint": "http://one:9000", "bucket": "fleet", "prefix": "telemetry"}.items() <= document.items()
    assert (document["acceptance"], document["authority_id"]) == ("s3_manifest", first.authority_id)


async def test_a_copy_and_an_address_that_is_not_listed_are_refused() -> None:
    desk = AcceptDesk()
    authority = await found(desk)
    with pytest.raises(Refused, match=r"is at s3://fleet/telemetry at http://two:9000.*for s3://fleet/telemetry at"):
        await found(desk, COPY)
    assert await found(desk, COPY, unsafe_any_place=True) == authority
    await add_alias(desk.store(), desk.ambient(), COPY)
    assert (await found(desk, COPY)).authority_id == authority.authority_id
    assert (await add_alias(desk.store(), desk.ambient(), COPY)).aliases == (COPY,)


async def test_collectors_of_another_mode_and_a_second_spool_are_refused() -> None:
    desk = AcceptDesk()
    await found(desk)
    for place in (HOME, COPY):
        with pytest.raises(Refused, match="accepted by s3_manifest here, not by local_spool"):
            await found(desk, place, mode=SPOOL, unsafe_any_place=True)
    desk = AcceptDesk()
    await found(desk, mode=SPOOL, spool_id="disk-1")
    assert (await found(desk, mode=SPOOL, spool_id="disk-1")).spool_id == "disk-1"
    with pytest.raises(Refused, match="the spool disk-1 accepts here"):
        await found(desk, mode=SPOOL, spool_id="disk-2")
    replaced = await promote(desk.store(), desk.ambient(), HOME, reason="the disk died", spool_id="disk-2")
    assert (await found(desk, mode=SPOOL, spool_id="disk-2")) == replaced


async def test_an_empty_second_bucket_is_refused_where_the_authority_is_pinned() -> None:
    desk = AcceptDesk()
    with pytest.raises(Refused, match="has no authority, and pinned is expected"):
        await found(desk, expected_id="pinned")
    assert desk.shelf.objects == {}
    authority = await found(desk)
    assert await found(desk, expected_id=authority.authority_id) == authority
    with pytest.raises(Refused, match="pinned is expected"):
        await found(desk, expected_id="pinned")


async def test_promoting_a_copy_issues_a_new_authority_that_names_the_old() -> None:
    desk = AcceptDesk()
    assert await read_authority(desk.store(), desk.ambient()) is None
    with pytest.raises(NotFound):
        await promote(desk.store(), desk.ambient(), HOME, reason="why not")
    with pytest.raises(NotFound):
        await add_alias(desk.store(), desk.ambient(), HOME)
    original = await found(desk)
    promoted = await promote(desk.store(), desk.ambient(), COPY, reason="the first region burns")
    assert promoted.authority_id != original.authority_id
    assert promoted.former[0]["authority_id"] == original.authority_id
    assert promoted.former[0]["reason"] == "the first region burns"
    assert await found(desk, COPY) == promoted
    with pytest.raises(Refused):
        await found(desk, HOME)
    with pytest.raises(Refused, match="is for this very place"):
        await promote(desk.store(), desk.ambient(), COPY, reason="again")


@pytest.mark.parametrize("field", ["acceptance", "bucket", "authority_id"])
async def test_a_document_without_a_field_is_corrupt(field: str) -> None:
    desk = AcceptDesk()
    await found(desk)
    document = codec.decode(desk.shelf.objects[layout.AUTHORITY].body, key=layout.AUTHORITY)
    del document[field]
    await desk.store().put(layout.AUTHORITY, codec.encode(document))
    with pytest.raises(Corrupt):
        await found(desk)


def stored(**fields: str) -> Document:
    return {"scheme": "s3", "endpoint": "", "bucket": "fleet", "prefix": "telemetry", **fields}


@pytest.mark.parametrize(
    ("old", "opened"),
    [
        (stored(), Place("s3", "", "fleet", "telemetry")),
        (stored(endpoint="http://one:9000"), HOME),
        (stored(endpoint="https://s3.eu-north-1.amazonaws.com"), Place("s3", "", "fleet", "telemetry")),
        (stored(scheme="az", endpoint="acme"), Place("az", "", "fleet", "telemetry", "acme")),
    ],
)
async def test_places_of_older_versions_are_read(old: Document, opened: Place) -> None:
    desk = AcceptDesk()
    await found(desk, opened)
    document = codec.decode(desk.shelf.objects[layout.AUTHORITY].body, key=layout.AUTHORITY)
    del document["account"]
    await desk.store().put(layout.AUTHORITY, codec.encode({**document, **old}))
    assert (await found(desk, opened)).place == opened


async def test_an_old_place_without_a_server_is_accepted_at_no_named_server_until_it_is_an_alias() -> None:
    desk = AcceptDesk()
    await found(desk, Place("s3", "", "fleet", "telemetry"))
    for server in (HOME, COPY):
        with pytest.raises(Refused, match=f"is at s3://fleet/telemetry at {server.endpoint}, .* at AWS"):
            await found(desk, server)
    await add_alias(desk.store(), desk.ambient(), HOME)
    assert (await found(desk, HOME)).aliases == (HOME,)
    with pytest.raises(Refused, match="it is a copy"):
        await found(desk, COPY)
