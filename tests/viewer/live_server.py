"""The viewer served on a free port in a thread, as `sgpmil view` serves it."""

import socket
import threading
from contextlib import contextmanager

import uvicorn

from sgpmil.viewer.patient_protocol import PatientProtocol
from sgpmil.viewer.server import guarded_app


@contextmanager
def live_server(viewing, options):
    place = socket.socket(proto=socket.IPPROTO_TCP)  # as the viewer does: no delayed answers
    place.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        guarded_app(viewing, options),
        http=PatientProtocol,
        log_level="warning",
        ws="none",
        lifespan="off",
    )
    server = uvicorn.Server(config)
    started = threading.Event()
    startup = server.startup

    async def announce(sockets=None):
        await startup(sockets)
        started.set()

    server.startup = announce
    thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
    thread.start()
    assert started.wait(60)
    try:
        yield f"http://127.0.0.1:{place.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        place.close()
