"""Every banned way to time, randomness and threads; the code stands at the end of the line."""

import asyncio
import os
import random
import secrets  # TID251
import time
import uuid
from datetime import UTC, date, datetime


async def everything() -> list[object]:
    return [
        time.time(),  # TID251
        time.time_ns(),  # TID251
        time.monotonic(),  # TID251
        time.monotonic_ns(),  # TID251
        time.perf_counter(),  # TID251
        time.sleep(0),  # TID251
        datetime.now(UTC),  # TID251
        datetime.utcnow(),  # TID251
        datetime.today(),  # TID251
        date.today(),  # TID251
        random.random(),  # TID251
        random.choice([1]),  # TID251
        random.shuffle([1]),  # TID251
        uuid.uuid1(),  # TID251
        uuid.uuid4(),  # TID251
        os.urandom(1),  # TID251
        secrets.token_bytes(),
        await asyncio.to_thread(print),  # TID251
    ]
