"""Keys of runs: where everything lies, and which ids can be part of them."""

import pytest

from holdfast.base.errors import Invalid
from holdfast.objects.store import check_key
from holdfast.runs import layout


@pytest.mark.parametrize("run_id", ["INC-4821", "a b", "ünïcödé", "x" * 200, "order:7#2[k]", ".hidden", "5f2c.child"])
def test_an_id_that_fits_gives_keys_that_every_store_takes(run_id: str) -> None:
    assert layout.check_run_id(run_id) == run_id
    for key in (
        layout.journal_key(run_id),
        layout.segment_key(run_id, 2, 64, "a" * 24),
        layout.payload_key(run_id, "a" * 32),
        layout.mail_key(run_id, "e" * 200, "m-" + "a" * 32),
        layout.fork_key(run_id, "f" * 200),
        layout.generation_key(run_id, 3, "a" * 24),
    ):
        assert check_key(key) == key


@pytest.mark.parametrize("run_id", ["", "a/b", ".", "..", "x" * 201, "é" * 101, "a\nb", "a\x00", "\ud800", "\u200b"])
def test_an_id_that_does_not_fit_is_refused_with_a_remedy(run_id: str) -> None:
    with pytest.raises(Invalid) as refused:
        layout.check_run_id(run_id)
    assert refused.value.remedy


def test_keys_lead_back() -> None:
    assert layout.mail_id(layout.mail_key("r", "approval", "m-1")) == "m-1"
    assert layout.fork_id(layout.fork_key("r", "r.2")) == "r.2"
    assert layout.run_of_folder(layout.run_folder("r")) == "r"
    assert layout.payload_owner(layout.payload_key("r", "abc")) == "r"
    assert layout.payload_owner(layout.journal_key("r")) is None


def test_only_what_is_unique_by_construction_is_called_immutable() -> None:
    assert layout.immutable(layout.segment_key("r", 0, 0, "a"))
    assert layout.immutable(layout.payload_key("r", "a"))
    assert layout.immutable(layout.generation_key("r", 0, "a"))
    assert not layout.immutable(layout.journal_key("r"))
    assert not layout.immutable(layout.mail_key("r", "e", "k-1"))
    assert not layout.immutable("runs-index/v1/open/r/x")
