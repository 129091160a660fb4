"""What a version is. S3 and Azure compare ETags; Google's store compares generations, and its ETags do not count.

A version is what the store gave, unchanged, so that a version that was read equals the one that the write returned.
"""

from typing import TYPE_CHECKING, Protocol

from holdfast.objects.store import Version

if TYPE_CHECKING:  # obstore's typed dictionaries exist for type checkers only
    from obstore import GetOptions, ObjectMeta, PutResult, UpdateVersion


class Versions(Protocol):
    def of(self, found: "ObjectMeta | PutResult") -> Version | None:
        """The version in an answer; None if it carries none."""
        ...

    def condition(self, version: Version) -> "UpdateVersion":
        """The condition of a write."""
        ...

    def unless(self, version: Version) -> "GetOptions | None":
        """The condition of a read; None if the store has none, and the answer's version must be compared."""
        ...


class Etags:
    """``unquoted``: some servers compare the header's raw text with the bare hash, and refuse a quoted ETag."""

    def __init__(self, *, unquoted: bool = False) -> None:
        self._unquoted = unquoted

    def of(self, found: "ObjectMeta | PutResult") -> Version | None:
        etag = found["e_tag"]
        return None if etag is None else Version(etag)

    def condition(self, version: Version) -> "UpdateVersion":
        return {"e_tag": version.strip('"') if self._unquoted else version}

    def unless(self, version: Version) -> "GetOptions":
        return {"if_none_match": version}


class Generations:
    def of(self, found: "ObjectMeta | PutResult") -> Version | None:
        generation = found["version"]
        return None if generation is None else Version(generation)

    def condition(self, version: Version) -> "UpdateVersion":
        return {"version": version}

    def unless(self, version: Version) -> None:
        return None
