"""Signatures of S3 requests (AWS Signature Version 4), for keys that are known.

Every header that matters is signed, conditions included, and so is the hash of the body: what arrives was meant.
"""

import hashlib
import hmac
import time
from typing import NamedTuple

from holdfast.base.clock import Clock
from holdfast.objects.cloud.credentials import Keys

_ALGORITHM = "AWS4-HMAC-SHA256"
_EMPTY = hashlib.sha256().hexdigest()


class Signer:
    def __init__(self, keys: Keys, region: str, host: str, clock: Clock) -> None:
        self._keys = keys
        self._region = region
        self._host = host
        self._clock = clock
        self._moment = _Moment(-1, "", "", b"")

    def signed(self, method: str, path: str, headers: dict[str, str], body: bytes) -> dict[str, str]:
        """The headers to send. ``path`` is encoded already; the names in ``headers`` are in small letters."""
        moment = self._now()
        content = hashlib.sha256(body).hexdigest() if body else _EMPTY
        sent = {**headers, "host": self._host, "x-amz-content-sha256": content, "x-amz-date": moment.stamp}
        if self._keys.session_token:
            sent["x-amz-security-token"] = self._keys.session_token
        names = sorted(sent)
        lines = "\n".join([f"{name}:{_trimmed(sent[name])}" for name in names])
        listed = ";".join(names)
        request = f"{method}\n{path}\n\n{lines}\n\n{listed}\n{content}"
        digest = hashlib.sha256(request.encode()).hexdigest()
        to_sign = f"{_ALGORITHM}\n{moment.stamp}\n{moment.scope}\n{digest}"
        signature = hmac.digest(moment.key, to_sign.encode(), "sha256").hex()
        credential = f"{self._keys.access_key_id}/{moment.scope}"
        sent["authorization"] = f"{_ALGORITHM} Credential={credential}, SignedHeaders={listed}, Signature={signature}"
        return sent

    def _now(self) -> "_Moment":
        """What changes with the second, and with the day; replaced as a whole, for loops in several threads."""
        before, second = self._moment, self._clock.wall_ns() // 1_000_000_000
        if second == before.second:
            return before
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
        scope = f"{stamp[:8]}/{self._region}/s3/aws4_request"
        key = before.key if scope == before.scope else self._key(scope)
        self._moment = now = _Moment(second, stamp, scope, key)
        return now

    def _key(self, scope: str) -> bytes:
        key = f"AWS4{self._keys.secret_access_key}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        return key


class _Moment(NamedTuple):
    second: int
    stamp: str
    scope: str
    key: bytes


def _trimmed(value: str) -> str:
    return " ".join(value.split()) if " " in value else value
