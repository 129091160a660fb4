"""What is counted of a store: an unwelcome answer is not a failure of the store."""

import pytest

from holdfast.base.errors import NotFound, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client, Usage
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import CREATE, Lost
from tests.unit.objects.scripted import Scripted


async def test_what_is_not_there_is_an_answer_and_what_is_not_served_is_an_error() -> None:
    usage, script = Usage(), Scripted("ok", "ok", "busy")
    store = Client(script, ambient=Ambient.system(), retry=RetryPolicy(attempts=1), usage=usage)
    with pytest.raises(NotFound):
        await store.get("meta/nothing")
    with pytest.raises(NotFound):
        await store.head("meta/nothing")
    await store.put("meta/a", b"1", CREATE)
    assert isinstance(await store.put("meta/a", b"2", CREATE), Lost)
    assert [row["errors"] for row in usage.rows()] == [0, 0, 0]
    with pytest.raises(Unavailable):
        await store.put("meta/b", b"3", CREATE)
    assert (usage.at("put", "meta").requests, usage.at("put", "meta").errors) == (3, 1)
