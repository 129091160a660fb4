"""Why bytes are no frame. Every way in which decoding can fail is one of these reasons, and nothing else is raised."""

from enum import StrEnum

from holdfast.base.errors import Invalid


class Reason(StrEnum):
    """The names are part of the HTTP interface: a client sees them in the error's ``reason``."""

    MAGIC = "bad_magic"
    VERSION = "unknown_version"
    FLAGS = "unknown_flags"
    LENGTH = "wrong_length"
    CHECKSUM = "wrong_checksum"
    TOO_LARGE = "too_large"
    COMPRESSION = "bad_compression"
    IDENTITY = "bad_identity"
    SEQUENCE = "bad_sequence"
    COLUMN = "bad_column"
    TEXT = "bad_text"
    VALUE = "bad_value"


class FrameInvalid(Invalid):
    """These bytes are no valid frame: the sender must not send them again as they are."""

    def __init__(self, reason: Reason, message: str, *, remedy: str | None = None) -> None:
        super().__init__(f"frame: {message}", remedy=remedy)
        self.reason = reason

    def __reduce__(self) -> tuple[type["FrameInvalid"], tuple[Reason, str]]:
        return FrameInvalid, (self.reason, str(self).removeprefix("frame: "))
