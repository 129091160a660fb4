"""Signatures of S3 requests (AWS Signature Version 4), for keys that are known.

Every header that matters is signed, conditions included, and so is the hash of the body: what arrives was meant.
"""

import hashlib
import hmac
import time

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
        self._second = -1
        self._day = ""

    def signed(self, method: str, path: str, headers: dict[str, str], body: bytes) -> dict[str, str]:
        """The headers to send. ``path`` is encoded already; the names in ``headers`` are in small letters."""
        self._look_at_the_clock()
        content = hashlib.sha256(body).hexdigest() if body else _EMPTY
        sent = {**headers, "host": self._host, "x-amz-content-sha256": content, "x-amz-date": self._stamp}
        if self._keys.session_token:
            sent["x-amz-security-token"] = self._keys.session_token
        names = sorted(sent)
        lines = "\n".join([f"{name}:{_trimmed(sent[name])}" for name in names])
        listed = ";".join(names)
        request = f"{method}\n{path}\n\n{lines}\n\n{listed}\n{content}"
        digest = hashlib.sha256(request.encode()).hexdigest()
        to_sign = f"{_ALGORITHM}\n{self._stamp}\n{self._scope}\n{digest}"
        signature = hmac.digest(self._key, to_sign.encode(), "sha256").hex()
        credential = f"{self._keys.access_key_id}/{self._scope}"
        sent["authorization"] = f"{_ALGORITHM} Credential={credential}, SignedHeaders={listed}, Signature={signature}"
        return sent

    def _look_at_the_clock(self) -> None:
        """What changes with the second, and with the day."""
        second = self._clock.wall_ns() // 1_000_000_000
        if second == self._second:
            return
        self._second = second
        self._stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
        day = self._stamp[:8]
        if day != self._day:
            self._day = day
            self._scope = f"{day}/{self._region}/s3/aws4_request"
            key = f"AWS4{self._keys.secret_access_key}".encode()
            for part in self._scope.split("/"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._key = key


def _trimmed(value: str) -> str:
    return " ".join(value.split()) if " " in value else value
