import asyncio
import concurrent.futures
import threading
from threading import Thread

asyncio.run(main())  # FIRES
threading.Thread(target=print).start()  # FIRES
Thread(target=print).start()  # FIRES
pool = concurrent.futures.ThreadPoolExecutor()  # FIRES
done = asyncio.get_running_loop().run_in_executor(None, print)  # FIRES
loop.run_until_complete(main())  # FIRES

lock = threading.Lock()
group = asyncio.TaskGroup()
