"""Exceptions in the form that obstore 0.12 gives them. The tests with a scripted server show that this is the form."""

import json

SENTENCE = "Generic S3 error: Error performing PUT http://store:9000/bucket/k in 1.2ms - "
OBJECT = "http://store:9000/bucket/k"

NO_FILES_LEFT = """
  kind: Request,
  source: hyper_util::client::legacy::Error(
    Connect,
    ConnectError(
      "tcp open error",
      Os { code: 24, kind: TooManyOpenFiles, message: "Too many open files" },
"""


def answered(
    kind: type[Exception], status: int, body: str | None, *, key: str = "k", address: str = OBJECT
) -> Exception:
    """The server answered with an error status."""
    quoted = "None," if body is None else f"Some(\n        {_quoted(body)},\n      ),"
    inner = f"Status {{\n      status: {status},\n      body: {quoted}"
    said = f"Object at {key} already exists: {SENTENCE}Server returned non-2xx status code: {status}: {body or ''}"
    return kind(_text(said, inner, key=key, address=address))


def unanswered(kind: type[Exception], http_kind: str, source: str, *, address: str = OBJECT) -> Exception:
    """No answer, or half of one."""
    inner = f"Http(\n    HttpError {{\n      kind: {http_kind},\n      source: reqwest::Error {{{source}"
    return kind(_text(f"{SENTENCE}HTTP error: error sending request", inner, address=address))


def delete_refused(kind: type[Exception], code: str, reason: str, *, key: str = "k") -> Exception:
    """One key of a bulk delete."""
    dump = f'Generic {{\n  source: DeleteFailed {{\n    path: "{key}",\n    code: "{code}",\n    reason: "{reason}",\n'
    return kind(f"Bulk delete request failed for key {key}: {reason} (code: {code})\n\nDebug source:\n{dump}")


def starts_too_late(kind: type[Exception]) -> Exception:
    """An answer to a range that starts at the end of the object: Azure's 206 has no last byte."""
    source = "source: InvalidRangeRequest {\n        source: StartTooLarge {\n            requested: 10,"
    return kind(f"Generic error: Wanted range starting at 10\n\nDebug source:\nGeneric {{\n    {source}\n")


def _text(sentence: str, inner: str, *, key: str = "k", address: str = OBJECT) -> str:
    dump = f"Generic {{\n  path: {_quoted(key)},\n  source: RetryError(\n    uri: Some(\n      {address},\n    ),\n"
    return f"{sentence}\n\nDebug source:\n{dump}    inner: {inner}\n"


def _quoted(text: str) -> str:
    """Rust's way of quoting, where it is the same as JSON's."""
    return json.dumps(text, ensure_ascii=False)
