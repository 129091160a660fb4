"""An audit as one page of HTML that needs nothing else: for a ticket, or for whoever has no access to the store. Pure.

Whatever comes from the store is escaped: a key cannot become markup.
"""

from collections import defaultdict
from html import escape
from typing import TYPE_CHECKING

from holdfast.base.clock import iso
from holdfast.base.codec import Document

if TYPE_CHECKING:
    from holdfast.pipeline.audited import Audited

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1c2733 }
h1 { font-size: 1.5rem; margin-bottom: .2rem }
h2 { font-size: 1.1rem; margin: 2rem 0 .3rem }
p { margin: .3rem 0 }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid #dde3e9 }
td.key { font-family: ui-monospace, monospace; font-size: .85em; overflow-wrap: anywhere }
.verdict { font-weight: 600 }
.good { color: #17663a } .error { color: #a4161a } .warning { color: #8a5a00 } .information { color: #4a5a6a }
@media (prefers-color-scheme: dark) {
  body { background: #12181f; color: #dce3ea } th, td { border-color: #2c3742 }
  .good { color: #6fd394 } .error { color: #ff8a8a } .warning { color: #f0c060 } .information { color: #9fb0c0 }
}
"""


def page_of(record: "Audited") -> str:
    """The whole report."""
    verdict = "Nothing is wrong" if record.good else f"{record.errors:,} errors"
    tone = "good" if record.good else "error"
    read = "all bytes" if record.one_in <= 1 else f"the bytes of 1 object in {record.one_in}"
    facts = {
        "Scopes": ", ".join(record.scopes),
        "Holds through": f"{iso(record.through_unix_ns)} by the store's clock",
        "Read": f"{read}; manifests from {'a listing' if record.source == 'scan' else 'an S3 Inventory report'}",
        "Began": iso(record.began_unix_ns),
        "Ended": iso(record.ended_unix_ns),
    }
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Audit {escape(record.audit_id)}</title><style>{STYLE}</style></head><body>",
        f"<h1>Audit {escape(record.audit_id)}</h1>",
        f'<p class="verdict {tone}">{escape(verdict)}</p>',
        _rows(["", ""], list(facts.items()), head=False),
        *(f"<p>{escape(scope)} could not be judged: {escape(why)}</p>" for scope, why in record.incomplete.items()),
        *_findings(record),
        "<h2>Looked at</h2>",
        _rows(["what", "how many"], [(what, f"{count:,}") for what, count in record.checked.items()])
        if record.checked
        else "<p>Nothing: the store is empty, or everything in it is younger.</p>",
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _findings(record: "Audited") -> list[str]:
    by_rule: dict[str, list[Document]] = defaultdict(list)
    for each in record.findings:
        by_rule[str(each["rule"])].append(each)
    parts: list[str] = []
    for rule, found in by_rule.items():
        severity, total = str(found[0]["severity"]), record.found[rule]
        parts.append(f'<h2 class="{escape(severity)}">{escape(severity)}: {escape(rule)} ({total:,})</h2>')
        parts.append(f"<p>What to do: {escape(str(found[0]['remedy']))}</p>")
        parts.append(_rows(["key", "what is wrong"], [(str(each["key"]), str(each["message"])) for each in found]))
        if total > len(found):
            parts.append(f"<p>And {total - len(found):,} more; the record names the lists with all of them.</p>")
    return parts


def _rows(columns: list[str], rows: list[tuple[str, str]], *, head: bool = True) -> str:
    titles = f"<tr>{''.join(f'<th>{escape(each)}</th>' for each in columns)}</tr>" if head else ""
    body = "".join(f'<tr><td class="key">{escape(first)}</td><td>{escape(second)}</td></tr>' for first, second in rows)
    return f"<table>{titles}{body}</table>"
