"""A Ray cluster of two machines of one core each, for all tests, and the loss of a third one."""

import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import wait_until

STORE = 80 * 2**20


@contextmanager
def started_cluster():
    """Start two machines; this process is connected to them."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray's workers are nice (15): beside other tests they would wait.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - Ray spells it so
    by_value(__name__)
    head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": STORE}
    with _own_signals():
        found = Cluster(initialize_head=True, head_node_args=head)
        found.add_node(num_cpus=1, object_store_memory=STORE)
        ray.init(found.address, log_to_driver=False, logging_level="error")
    yield found
    ray.shutdown()
    found.shutdown()


@contextmanager
def _own_signals():
    """Undo what Ray sets for SIGTERM with every machine: later tests send it."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def by_value(module):
    """Let workers, which import nothing of the tests, receive what a module defines."""
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[module])


@contextmanager
def losing_a_machine(cluster, folder):
    """Add a machine, and remove it while a worker there waits in `wait_on_lost`.

    Yields the name of the machine, which workers get.
    """
    import ray

    with _own_signals():
        lost = cluster.add_node(num_cpus=1, object_store_memory=STORE)

    def lose():
        wait_until((folder / "waits").exists)
        cluster.remove_node(lost, allow_graceful=False)

    thread = threading.Thread(target=lose)
    thread.start()
    yield lost.node_id
    thread.join()
    wait_until(lambda: lost.node_id not in {n["NodeID"] for n in ray.nodes() if n["Alive"]})


def wait_on_lost(folder, machine):
    """Wait for ever on the machine that is to be lost, and elsewhere until that one waits."""
    import ray

    here = ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""
    if here == machine and first(Path(folder) / "waits"):
        while True:
            time.sleep(0.1)
    while not (Path(folder) / "waits").exists():
        time.sleep(0.1)  # so that work is left for that machine


def first(marker):
    """Return whether this is the first call for a marker."""
    try:
        Path(marker).touch(exist_ok=False)
    except OSError:
        return False
    return True


def contents(folder):
    """Return the bytes of all files of a folder by their paths in it, hidden ones too."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
