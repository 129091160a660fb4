"""The certificate of a store, and the quick check of a store at the start of a service.

A certificate records that ``holdfast doctor --certify`` ran every law on this store and saw no violation: which laws,
with what effort, when, by which version. It says where it was issued (address and endpoint, never a secret), because a
copied bucket contains the object too: only a certificate that ``covers`` the store's place counts.

``start_check`` sends eight requests under a throwaway key. They show that the store refuses a second create and a stale
if-match, and read the certificate. It does not test races: ``holdfast doctor`` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.base.clock import iso
from holdfast.base.errors import Ambiguous, Refused
from holdfast.base.ids import Ambient
from holdfast.base.record import ControlRecord, Timestamp
from holdfast.objects.client import START_CHECK_PREFIX, Client
from holdfast.objects.conformance.laws import Effort, Finding
from holdfast.objects.place import Place, described
from holdfast.objects.store import CREATE, IfMatch, Lost, Store, Written

CERTIFICATE_KEY = "meta/certificate.json"


@dataclass(frozen=True)
class LawRecord:
    """One law and its finding."""

    name: str
    verdict: str
    figure: str


@dataclass(frozen=True)
class Certificate(ControlRecord):
    """No violation was found on ``store`` at ``certified_at``, with this much effort."""

    FORMAT = "holdfast.certificate"
    WHAT = "a certificate"

    store: str
    certified_at: Timestamp
    holdfast_version: str
    races: int
    rounds: int
    keys: int
    large_bytes: int
    laws: tuple[LawRecord, ...]
    endpoint: str | None = None
    """None for the provider's own servers."""
    account: str | None = None

    def covers(self, place: Place) -> bool:
        """Whether it was issued for this very place; a copy or a move needs a certificate of its own."""
        return (self.store, self.endpoint or "", self.account or "") == (place.uri, place.endpoint, place.account)

    def __str__(self) -> str:
        return described(self.store, self.endpoint or "", self.account or "")


def certify(
    place: Place, findings: Sequence[Finding], effort: Effort, *, holdfast_version: str, ambient: Ambient
) -> Certificate:
    """The certificate for these findings; ``Refused`` unless every law was kept, with enough evidence."""
    problems = [f"{finding.law.name} is {finding.verdict}" for finding in findings if not finding.kept]
    problems += [f"{finding.law.name} saw only {finding.confidence}" for finding in findings if finding.is_weak]
    if problems or not findings:
        raise Refused(
            f"{place}: no certificate: {', '.join(problems) or 'no law was run'}",
            remedy="run holdfast doctor and read its table",
        )
    return Certificate(
        store=place.uri,
        endpoint=place.endpoint or None,
        account=place.account or None,
        certified_at=iso(ambient.clock.wall_ns()),
        holdfast_version=holdfast_version,
        races=effort.races,
        rounds=effort.rounds,
        keys=effort.keys,
        large_bytes=effort.large_bytes,
        laws=tuple(LawRecord(name=each.law.name, verdict=each.verdict, figure=each.figure) for each in findings),
    )


async def write_certificate(store: Store, certificate: Certificate, ambient: Ambient) -> None:
    """The newest examination replaces the one before."""
    await store.put(CERTIFICATE_KEY, certificate.encode(ambient.ids.write_id()))


async def read_certificate(store: Store) -> Certificate | None:
    """The certificate in the store, which may be that of another place."""
    found = await store.find(CERTIFICATE_KEY)
    return None if found is None else Certificate.decode(found.body, key=CERTIFICATE_KEY)


async def start_check(store: Client) -> str | None:
    """Four PUTs, three GETs and a DELETE. ``Refused`` if the store ignores conditions.

    Returns a warning for the operator if the store has no certificate of its own, else None.
    """
    key = f"{START_CHECK_PREFIX}{store.ambient.ids.unique()}"
    try:
        evidence = await _evidence_against_conditions(store, key)
    except Ambiguous as error:
        evidence = str(error)  # a condition that holds was refused; an outage would show in the delete as well
    finally:
        await store.delete(key)
    if evidence is not None:
        raise Refused(
            f"{store.spec.uri}: the store does not keep conditions: {evidence}",
            remedy=f"run holdfast doctor {store.spec.uri} and use another store",
        )
    certificate = await read_certificate(store)
    if certificate is not None and certificate.covers(store.place):
        return None
    found = "it has no certificate" if certificate is None else f"its certificate was issued for {certificate}"
    return f"{store.place} has not been examined ({found}): run holdfast doctor --certify"


async def _evidence_against_conditions(store: Client, key: str) -> str | None:
    """The mistake of the store; None if it refused a second create and a stale if-match and kept the bytes.

    ``Client`` reads the object back after a refused write, so ``Lost`` has its bytes.
    """
    bodies = [f"start check {turn} {store.ambient.ids.write_id()}".encode() for turn in range(4)]
    first = await store.put(key, bodies[0], CREATE)
    if not isinstance(first, Written):
        return "a create of a new key was refused"
    second = await store.put(key, bodies[1], CREATE)
    if not _lost_to(second, bodies[0]):
        return "a second create of one key was not refused"
    third = await store.put(key, bodies[2], IfMatch(first.version))
    if not isinstance(third, Written):
        return "an if-match on the current version was refused"
    fourth = await store.put(key, bodies[3], IfMatch(first.version))
    if not _lost_to(fourth, bodies[2]):
        return "an if-match on a stale version was not refused"
    return None


def _lost_to(outcome: Written | Lost, current: bytes) -> bool:
    return isinstance(outcome, Lost) and outcome.current is not None and outcome.current.body == current
