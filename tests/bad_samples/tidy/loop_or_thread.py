import asyncio
import concurrent.futures
import threading
from threading import Thread

asyncio.run(main())  # FIRES
threading.Thread(target=print).start()  # FIRES
Thread(target=print).start()  # FIRES
pool = concurrent.futures.ThreadPoolExecutor()  # FIRES

lock = threading.Lock()
group = asyncio.TaskGroup()
