import os
import signal
import socket
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.splits import make_kfold
from sgpmil.errors import ClusterError, SettingsError
from sgpmil.models.abmil import ABMIL
from sgpmil.scaleout.executors import PlaceOptions
from sgpmil.training.cross_validation import cross_validate
from tests.ray_machines import by_value, first, losing_a_machine, wait_on_lost
from tests.training.conftest import file_weights

ray = pytest.importorskip("ray")

from sgpmil.scaleout.ray_cluster import RayExecutor, connect  # noqa: E402
from sgpmil.scaleout.shared_bags import share_bags  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

by_value(__name__)


def bags_of(count=24):
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(5 + i, 6)) + i % 2 for i in range(count)]
    return BagDataset.from_arrays(arrays, [i % 2 for i in range(count)])


def train(run, bags=None, model="abmil", **options):
    bags = bags_of() if bags is None else bags
    return cross_validate(
        bags,
        make_kfold(bags_of().label_table(), num_folds=6),
        model=model,
        model_settings={"hidden_dim": 8, "attention_dim": 4},
        training={"epochs": 4, "device": "cpu"},
        run=run,
        progress=False,
        **options,
    )


def same_run(found, expected):
    for one, other in zip(found.predictions, expected.predictions, strict=True):
        assert one.slide_ids == other.slide_ids
        np.testing.assert_array_equal(one.probs, other.probs)
    assert [m.row for m in found.metrics] == [m.row for m in expected.metrics]
    folds = sorted(path.name for path in expected.folder.glob("fold-*"))
    assert len(folds) == 6
    for fold in folds:
        weights, same = (
            file_weights(r.folder / fold / "checkpoint.safetensors") for r in (found, expected)
        )
        assert all(torch.equal(weights[name], value) for name, value in same.items())
        epochs = [(r.folder / fold / "metrics.csv").read_text() for r in (found, expected)]
        assert epochs[0] == epochs[1]
    files = [
        {str(p.relative_to(r.folder)) for p in r.folder.rglob("*") if p.is_file()}
        for r in (found, expected)
    ]
    assert files[0] == files[1]


class Fragile(ABMIL):
    """Dies once in the middle of a fold; waits once, on the machine that is to be lost."""

    markers = ""
    lost_machine = ""

    def start_epoch(self, epoch, **options):
        markers = Path(self.markers)
        if epoch == 2 and first(markers / "killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        if epoch == 3:
            wait_on_lost(markers, self.lost_machine)
        return super().start_epoch(epoch, **options)


@pytest.fixture(scope="module")
def local_run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("local") / "run")


def test_a_killed_worker_and_a_lost_machine_cost_nothing(cluster, tmp_path):
    with losing_a_machine(cluster, tmp_path) as lost:
        Fragile.markers, Fragile.lost_machine = str(tmp_path), lost
        found = train(tmp_path / "ray", model=Fragile, executor=RayExecutor())
    assert (tmp_path / "killed").exists()
    same_run(found, train(tmp_path / "local", model=Fragile))  # both have happened: it is plain
    assert not list(tmp_path.rglob("*.lock"))
    assert not list(tmp_path.rglob("*.tmp"))


def test_bags_travel_where_no_folder_is_shared_and_a_resumed_run_trains_what_is_left(
    cluster, tmp_path, local_run
):
    first = train(tmp_path / "run", only_folds=["0", "1", "2"])
    times = {f: (first.folder / f"fold-{f}/predictions.parquet").stat().st_mtime_ns for f in "012"}
    bags = share_bags(bags_of())
    found = train(tmp_path / "run", bags, executor=RayExecutor(), shared_folder=False, resume=True)
    same_run(found, local_run)
    for fold, time_ns in times.items():
        assert (found.folder / f"fold-{fold}/predictions.parquet").stat().st_mtime_ns == time_ns


# Clusters


@pytest.fixture
def started(monkeypatch):
    """Take what `ray.init` is called with."""
    made = []
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(
        ray, "init", lambda address=None, **options: made.append((address, "num_cpus" in options))
    )
    return made


@pytest.fixture
def noted(monkeypatch, tmp_path):
    """Note an address as `ray start` does."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    return (tmp_path / "ray/ray_current_cluster").write_text


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_the_cluster_that_this_machine_is_a_part_of_is_joined(started, noted):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        noted(address)
        connect()
    assert started == [(address, False)]


def test_a_cluster_that_has_ended_is_not_waited_for(started, noted):
    connect()  # nothing is noted
    noted(f"127.0.0.1:{free_port()}")
    connect()
    assert started == [("local", True), ("local", True)]


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_at_which_nothing_listens_is_refused(started, monkeypatch, scheme):
    address = f"{scheme}127.0.0.1:{free_port()}"
    with pytest.raises(ClusterError, match=f"Ray cluster at {address}, but it does not answer"):
        connect(address)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ClusterError, match=address):
        connect()
    assert started == []


def test_named_clusters_are_joined(started, noted, monkeypatch):
    noted(f"127.0.0.1:{free_port()}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        connect(address)
        monkeypatch.setenv("RAY_ADDRESS", address)
        connect()
        connect("local")
    assert started == [(address, False), (address, False), ("local", True)]


# Jobs


def _answer(text):
    def run(job):
        if job == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if job == "refuse":
            raise SettingsError("Expected another job.")
        return f"{text} {job}"

    return run


def run(jobs, executor):
    done, places = {}, set()
    executor.run(
        partial(_answer, "did"),
        jobs,
        on_change=lambda running: places.update(one.place for one in running),
        on_done=done.__setitem__,
        on_death=lambda job: f"lost {job}",
    )
    return done, places


def test_every_machine_works_and_a_job_that_kills_its_workers_is_given_up(cluster):
    jobs = ["die", *(str(number) for number in range(8))]
    done, places = run(jobs, RayExecutor(attempts=2))
    assert done == {"die": "lost die"} | {job: f"did {job}" for job in jobs[1:]}
    assert all("#" in place for place in places)  # two machines of one name


def test_an_error_is_raised_here(cluster):
    with pytest.raises(SettingsError, match="Expected another job"):
        run(["a", "refuse"], RayExecutor())


def test_a_job_that_fits_nowhere_is_refused(cluster):
    with pytest.raises(ClusterError, match=r"with 1 CPUs and 2 GPUs .* `gpus_per_job`"):
        run(["a"], RayExecutor(gpus=2))


@pytest.mark.parametrize("options", [{"cpus": -1}, {"cpus": 0}, {"gpus": float("nan")}])
def test_impossible_parts_of_a_machine_are_refused(options):
    with pytest.raises(SettingsError, match=r"of a job|a job to take"):
        RayExecutor(**options)


def test_places():
    assert isinstance(PlaceOptions(on="ray", gpus_per_job=0.25).executor(), RayExecutor)
    assert PlaceOptions(on="ray://head:10001").executor().address == "ray://head:10001"
    with pytest.raises(SettingsError, match="local, ray or ray://HOST:PORT, but got 'slurm'"):
        PlaceOptions(on="slurm").executor()
    with pytest.raises(SettingsError, match='Add `on="ray"`'):
        PlaceOptions(gpus_per_job=1.0).executor()
    with pytest.raises(SettingsError, match="same path"):
        PlaceOptions(on="ray", shared_folder=False).executor(needs_shared_folder=True)
