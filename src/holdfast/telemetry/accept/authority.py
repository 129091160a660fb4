"""Which store accepts batches: one object per prefix names the place, the mode of acceptance, and an id.

Conditional creates exclude each other only within one bucket and prefix. A replicated copy, a second bucket or a second
mode of acceptance would each accept the same identities again. So ``meta/authority.json`` is created once and names its
own place, and a collector that reaches it at another address, or wants another mode, is refused (correction 12).

A copy of a store has the document of its original, and so is read-only until ``promote`` issues a new authority for the
copy's place, which names the one before. The original does not learn of it, so it must be out of service first.

Errors: ``Refused`` with both places in its message; ``Corrupt`` and ``Incompatible`` as for every document of ours.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

from holdfast.base import codec
from holdfast.base.clock import iso
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, Invalid, NotFound, Refused
from holdfast.base.ids import Ambient
from holdfast.base.record import Record
from holdfast.objects.place import Place
from holdfast.objects.register import UNCHANGED, Register, Unchanged
from holdfast.objects.store import Store
from holdfast.telemetry.accept import layout

FORMAT = "holdfast.authority"
VERSION = 1
OWN_SPOOL = (
    "start the collector on the folder of that spool; if it is lost for good,"
    " `holdfast authority promote --spool DIR` lets another one accept"
)


class Acceptance(StrEnum):
    S3_MANIFEST = "s3_manifest"
    """A batch is accepted when its manifest is in the object store; any number of collectors."""
    LOCAL_SPOOL = "local_spool"
    """A batch is accepted when it is on the one collector's disk, and lands in the object store later."""


def _read_place(found: Any) -> Any:
    """A place as it is stored here. Older versions stored no ``account``, and the endpoint as the URI had it.

    An old endpoint is empty if the URI named none, also if a variable or a profile named a server. It is read as that
    of the provider: at any other server the store is refused until ``holdfast authority alias`` confirms that it is the
    original. For Azure the old endpoint may be the account alone.
    """
    scheme, endpoint, bucket, prefix = (str(found[name]) for name in ("scheme", "endpoint", "bucket", "prefix"))
    account = str(found.get("account", ""))
    if scheme == "az" and "account" not in found and "://" not in endpoint:
        endpoint, account = "", endpoint
    return Place.at(scheme, endpoint, bucket, prefix, account)


StoredPlace = Annotated[Place, BeforeValidator(_read_place), PlainSerializer(Place.document)]


@dataclass(frozen=True)
class Authority(Record):
    WHAT = "an authority"

    authority_id: str
    place: StoredPlace
    """In the document, its fields are among the others."""
    acceptance: Acceptance
    created_at: str
    aliases: tuple[StoredPlace, ...] = ()
    """Other addresses that an operator has confirmed to be the same bucket and prefix."""
    spool_id: str | None = None
    """In ``local_spool``: the one spool that accepts."""
    former: tuple[Document, ...] = ()
    """The authorities of which this store was a copy, oldest first."""

    def covers(self, place: Place) -> bool:
        return place == self.place or place in self.aliases


class _Shape:
    """An authority in its document, beside the fields of the register."""

    def read(self, document: Document, key: str) -> Authority:
        codec.expect(document, format_name=FORMAT, newest=VERSION, key=key)
        try:
            return Authority.parse({**document, "place": document}, key=key)
        except (*codec.MALFORMED, Invalid) as error:
            raise Corrupt(f"{key}: not an authority ({error!r})") from error

    def write(self, value: Authority, previous: Document | None) -> Document:
        document = value.document(format=FORMAT, version=VERSION)
        place = document.pop("place")
        return {**(previous or {}), **document, **place}


def _register(store: Store, ambient: Ambient) -> Register[Authority]:
    return Register(store, layout.AUTHORITY, _Shape(), ambient)


async def read_authority(store: Store, ambient: Ambient) -> Authority | None:
    found = await _register(store, ambient).read()
    return None if found is None else found.value


@dataclass(frozen=True, slots=True)
class Claim:
    """What a collector is configured for."""

    place: Place
    acceptance: Acceptance
    expected_id: str | None = None
    """The authority that must be there; so an empty second bucket is refused too."""
    spool_id: str | None = None
    unsafe_any_place: bool = False

    async def find(self, store: Store, ambient: Ambient) -> Authority | None:
        """The authority of this store, if batches may be accepted under it; None if there is none yet."""
        found = await read_authority(store, ambient)
        if found is not None:
            self.check(found)
        elif self.expected_id is not None:
            raise Refused(
                f"{self.place}: has no authority, and {self.expected_id} is expected",
                remedy="name the store that holds it, or leave the expected id out to begin a new authority here",
            )
        return found

    def check(self, found: Authority) -> None:
        """``Refused`` if nothing may be accepted under this authority."""
        place = self.place
        if not found.covers(place) and not self.unsafe_any_place:
            raise Refused(
                f"this store is at {place}, and its authority {found.authority_id} is for {found.place}: it is a copy,"
                " or another way to the same bucket",
                remedy="a copy: `holdfast authority promote`, once the original is out of service; the same bucket:"
                " `holdfast authority alias`",
            )
        if self.expected_id not in (None, found.authority_id):
            raise Refused(
                f"{place}: the authority is {found.authority_id}, and {self.expected_id} is expected",
                remedy="name the store that holds the expected one",
            )
        if self.acceptance != found.acceptance:
            raise Refused(
                f"{place}: batches are accepted by {found.acceptance} here, not by {self.acceptance}",
                remedy=f"start every collector of this store with --acceptance {found.acceptance}",
            )
        if None not in (self.spool_id, found.spool_id) and self.spool_id != found.spool_id:
            raise Refused(
                f"{place}: the spool {found.spool_id} accepts here, and this one is {self.spool_id}", remedy=OWN_SPOOL
            )


async def open_authority(
    store: Store,
    ambient: Ambient,
    place: Place,
    acceptance: Acceptance,
    *,
    expected_id: str | None = None,
    spool_id: str | None = None,
    unsafe_any_place: bool = False,
) -> Authority:
    """The authority of this store, created if there is none. ``Refused`` if batches may not be accepted here in this
    mode. If several processes create it at once, one succeeds and all get its authority."""
    claim = Claim(place, acceptance, expected_id, spool_id, unsafe_any_place)
    found = await claim.find(store, ambient)
    if found is not None:
        return found
    ours = Authority(ambient.ids.unique(), place, acceptance, iso(ambient.clock.wall_ns()), spool_id=spool_id)

    def change(current: Authority | None) -> Authority | Unchanged:
        return ours if current is None else UNCHANGED

    created = (await _register(store, ambient).edit(f"create {ours.authority_id}", change)).value
    claim.check(created)
    return created


async def promote(
    store: Store,
    ambient: Ambient,
    place: Place,
    *,
    reason: str,
    acceptance: Acceptance | None = None,
    spool_id: str | None = None,
) -> Authority:
    """Issue a new authority for the copy at ``place``. The caller must know that the original accepts no batches any
    more."""
    new_id = ambient.ids.unique()
    now = iso(ambient.clock.wall_ns())

    def change(current: Authority | None) -> Authority | Unchanged:
        if current is None:
            raise NotFound(f"{place}: has no authority to promote", remedy="start a collector; it begins one")
        if current.covers(place) and acceptance in (None, current.acceptance) and spool_id == current.spool_id:
            raise Refused(
                f"{place}: the authority {current.authority_id} is for this very place", remedy="nothing is to be done"
            )
        past: Document = {
            "authority_id": current.authority_id,
            **current.place.document(),
            "acceptance": current.acceptance.value,
            "ended_at": now,
            "reason": reason,
        }
        return Authority(
            authority_id=new_id,
            place=place,
            acceptance=acceptance or current.acceptance,
            created_at=now,
            spool_id=spool_id,
            former=(*current.former, past),
        )

    return (await _register(store, ambient).edit(f"promote {new_id}", change)).value


async def add_alias(store: Store, ambient: Ambient, alias: Place) -> Authority:
    """Record that ``alias`` is another address of the same bucket and prefix, which cannot be checked."""

    def change(current: Authority | None) -> Authority | Unchanged:
        if current is None:
            raise NotFound(f"{layout.AUTHORITY}: there is no authority", remedy="start a collector; it begins one")
        return UNCHANGED if current.covers(alias) else replace(current, aliases=(*current.aliases, alias))

    return (await _register(store, ambient).edit(f"alias {alias} {ambient.ids.attempt()}", change)).value
