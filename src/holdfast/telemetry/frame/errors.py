"""The error for bytes that are not a valid frame, with a machine-readable reason. Decoding raises nothing else."""

from enum import StrEnum

from holdfast.base.errors import Invalid


class Reason(StrEnum):
    """Part of the HTTP interface: clients see the value in the field ``reason`` of an error."""

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
    """The bytes are not a valid frame. The sender must not send the same bytes again."""

    def __init__(self, reason: Reason, message: str, *, remedy: str | None = None) -> None:
        super().__init__(f"frame: {message}", remedy=remedy)
        self.reason = reason

    def __reduce__(self) -> tuple[type["FrameInvalid"], tuple[Reason, str]]:
        return FrameInvalid, (self.reason, str(self).removeprefix("frame: "))
