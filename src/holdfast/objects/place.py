"""Where a store is: server, account, bucket and prefix, resolved. Two stores are the same if their places are equal.

A cloud backend resolves its server once, when it is made (``cloud.config``): from the URI, the settings, the
environment or a profile. The disk cache, the certificate, the authority of collectors and messages all use that value,
so it does not matter which of these named the server.

The endpoint is canonical (``canonical_endpoint``), and empty for the provider's own servers: AWS's endpoints of all
regions lead to the same buckets, because a bucket's name is unique within a partition. Endpoints of AWS's other
partitions (GovCloud, China) are kept: there the same name is another bucket. Two addresses of one server are two
places: treating one store as two costs a command (``holdfast authority alias``), treating two as one would accept
batches twice.
"""

import re
from dataclasses import dataclass

from holdfast.base.codec import Document
from holdfast.objects.uri import StoreSpec, canonical_endpoint, uri_of

_AWS = re.compile(r"https?://s3(?:\.dualstack)?(?:[.-][a-z0-9-]+)?\.amazonaws\.com")
_PROVIDERS = {"s3": "AWS", "gs": "Google", "az": "Azure"}


@dataclass(frozen=True, slots=True)
class Place:
    """Made by ``at``, which makes the endpoint canonical."""

    scheme: str
    endpoint: str
    """Canonical; empty for the provider's own servers and for stores without a server."""
    bucket: str
    prefix: str
    account: str = ""
    """Azure's storage account."""

    @classmethod
    def at(cls, scheme: str, endpoint: str, bucket: str, prefix: str, account: str = "") -> "Place":
        server = canonical_endpoint(endpoint) if endpoint else ""
        return cls(scheme, "" if _is_providers_own(scheme, server, account) else server, bucket, prefix, account)

    @classmethod
    def of(cls, spec: StoreSpec) -> "Place":
        """The place that the address alone names; ``Client.place`` also has what the environment adds."""
        options = dict(spec.options)
        return cls.at(spec.scheme, options.get("endpoint", ""), spec.place, spec.prefix, options.get("account", ""))

    @property
    def uri(self) -> str:
        """The address without the server, as in ``StoreSpec.uri``."""
        return uri_of(self.scheme, self.bucket, self.prefix)

    def document(self) -> Document:
        return {
            "scheme": self.scheme,
            "endpoint": self.endpoint,
            "bucket": self.bucket,
            "prefix": self.prefix,
            "account": self.account,
        }

    def __str__(self) -> str:
        return described(self.uri, self.endpoint, self.account)


def described(uri: str, endpoint: str, account: str) -> str:
    """A place for messages, with its server: the endpoint, or the name of the provider."""
    server = endpoint or _PROVIDERS.get(uri.partition(":")[0])
    account = f", account {account}" if account else ""
    return f"{uri} at {server}{account}" if server else uri


def _is_providers_own(scheme: str, server: str, account: str) -> bool:
    if scheme == "s3":
        return _AWS.fullmatch(server) is not None and "us-gov" not in server
    if scheme == "gs":
        return server == "https://storage.googleapis.com"
    return scheme == "az" and server == f"https://{account.lower()}.blob.core.windows.net"
