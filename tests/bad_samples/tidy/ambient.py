import asyncio
import datetime
import os
import random
import secrets
import time
import time as clock
import uuid
from datetime import date
from datetime import datetime as dt
from random import choice
from time import monotonic

a = time.time()  # FIRES
b = clock.perf_counter_ns()  # FIRES
c = monotonic()  # FIRES
d = datetime.datetime.now(datetime.UTC)  # FIRES
e = dt.utcnow()  # FIRES
f = date.today()  # FIRES
g = random.random()  # FIRES
h = choice([1, 2])  # FIRES
i = uuid.uuid4()  # FIRES
j = os.urandom(8)  # FIRES
k = secrets.token_hex()  # FIRES
m = asyncio.to_thread(print)  # FIRES
n = random.Random()  # FIRES
o = [1].sort(key=random.random)  # FIRES

seeded = random.Random(7)
draw = seeded.random()
fixed = dt(2024, 1, 1, tzinfo=datetime.UTC)
parsed = dt.fromisoformat("2024-01-01")
named = uuid.UUID(int=7)
slept = asyncio.sleep(1)
