"""Check whether the live store enforces the policy: each rule is tried, with the caller's credentials, on test keys.

The keys are not those of manifests or blobs, so readers ignore them. Where the store refuses deletes, as it
should, two small objects stay behind for good, always the same ones. What a store let us do that it should have refused
is *not enforced*; what cannot be tried through this client is *not tried*, and says how to look for it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from holdfast.base.errors import Conflict, Denied, HoldfastError, Refused
from holdfast.base.ids import Ambient
from holdfast.objects.store import CREATE, OVERWRITE, IfMatch, Store, Written
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.policy import RAW_BLOBS

ENFORCED = "enforced"
NOT_ENFORCED = "not enforced"
NOT_TRIED = "not tried"
WORKS = "works"
BROKEN = "does not work"

ACCEPTED_KEY = f"{layout.ACCEPTED}policy-check.json"
BLOB_KEY = f"{RAW_BLOBS}policy-check.lmbatch"
OUTSIDE_KEY = "policy-check/outside.json"


@dataclass(frozen=True, slots=True)
class Checked:
    rule: str
    verdict: str
    detail: str

    @property
    def good(self) -> bool:
        return self.verdict in (ENFORCED, WORKS, NOT_TRIED)


UNTRIED = (
    Checked(
        "no copy into accepted/v1/", NOT_TRIED, "this client never copies; the bucket policy has a statement for it"
    ),
    Checked(
        "no lifecycle but for unfinished uploads",
        NOT_TRIED,
        "compare with `aws s3api get-bucket-lifecycle-configuration`",
    ),
    Checked("encryption as the deployment wants it", NOT_TRIED, "compare with `aws s3api get-bucket-encryption`"),
    Checked(
        "old versions are never deleted",
        NOT_TRIED,
        "this client knows no versions; the policy denies DeleteObjectVersion",
    ),
)


class PolicyCheck:
    def __init__(self, store: Store, ambient: Ambient, *, role: str) -> None:
        """``role`` is whose credentials these are: collector or gc."""
        self._store = store
        self._ambient = ambient
        self._role = role

    async def run(self) -> AsyncIterator[Checked]:
        yield await self._creates()
        yield await self._refused("unconditional write to accepted/v1/ is refused", self._overwrite)
        yield await self._refused("if-match write to accepted/v1/ is refused", self._replace)
        async for checked in self._accepted_delete():
            yield checked
        yield await self._blob_delete()
        yield await self._refused("write outside the expected prefixes is refused", self._outside)
        for untried in UNTRIED:
            yield untried

    def _body(self) -> bytes:
        return f'{{"policy_check": "{self._ambient.ids.write_id()}"}}'.encode()

    async def _creates(self) -> Checked:
        rule = "creation under accepted/v1/ is allowed, once"
        try:
            await self._store.put(ACCEPTED_KEY, self._body(), CREATE)
            again = await self._store.put(ACCEPTED_KEY, self._body(), CREATE)
        except HoldfastError as error:
            return Checked(rule, BROKEN, str(error))
        if isinstance(again, Written):
            return Checked(rule, BROKEN, "the same key was created twice")
        return Checked(rule, WORKS, ACCEPTED_KEY)

    async def _overwrite(self) -> None:
        await self._store.put(ACCEPTED_KEY, self._body(), OVERWRITE)

    async def _replace(self) -> None:
        found = await self._store.head(ACCEPTED_KEY)
        await self._store.put(ACCEPTED_KEY, self._body(), IfMatch(found.version))

    async def _outside(self) -> None:
        await self._store.put(OUTSIDE_KEY, self._body(), OVERWRITE)
        await self._store.delete(OUTSIDE_KEY)

    async def _accepted_delete(self) -> AsyncIterator[Checked]:
        async def delete() -> None:
            await self._store.delete(ACCEPTED_KEY)

        checked = await self._refused("delete under accepted/v1/ is refused", delete)
        yield checked
        rule = "an accepted name is never free again"
        if checked.verdict == ENFORCED:
            yield Checked(rule, ENFORCED, "it cannot be deleted")
            return
        try:
            reopened = isinstance(await self._store.put(ACCEPTED_KEY, self._body(), CREATE), Written)
        except HoldfastError as error:
            yield Checked(rule, NOT_TRIED, str(error))
            return
        if reopened:
            await self._store.delete(ACCEPTED_KEY)
            yield Checked(rule, NOT_ENFORCED, "it was deleted, or got a delete marker, and was created again")
        else:
            yield Checked(rule, ENFORCED, "the delete took no effect")

    async def _blob_delete(self) -> Checked:
        async def delete() -> None:
            await self._store.put(BLOB_KEY, b"policy check", CREATE)
            await self._store.delete(BLOB_KEY)

        if self._role != "gc":
            return await self._refused("delete under raw-blobs/v1/ is refused", delete)
        rule = "delete under raw-blobs/v1/ is allowed for garbage collection"
        try:
            await self._store.delete(BLOB_KEY)
        except HoldfastError as error:
            return Checked(rule, BROKEN, str(error))
        return Checked(rule, WORKS, BLOB_KEY)

    async def _refused(self, rule: str, work: Callable[[], Awaitable[None]]) -> Checked:
        try:
            await work()
        except (Denied, Refused) as error:
            return Checked(rule, ENFORCED, str(error))
        except Conflict as error:
            return Checked(rule, NOT_TRIED, str(error))
        except HoldfastError as error:
            return Checked(rule, NOT_TRIED, f"the store did not say: {error}")
        return Checked(rule, NOT_ENFORCED, "the store let it happen")
