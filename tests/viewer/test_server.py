import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import warnings
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.testclient import TestClient

from sgpmil.errors import SettingsError
from sgpmil.viewer.server import ViewOptions, guarded_app, open_viewing, page_address, view


def test_a_port_in_use_is_one_sentence(options):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"127.0.0.1:{port} cannot be used"):
            view(ViewOptions(run=options.run, port=port, no_browser=True))


def test_an_address_that_is_none_is_one_sentence(options):
    with pytest.raises(SettingsError, match="cannot be used"):
        view(ViewOptions(run=options.run, host="no such host", no_browser=True))


@pytest.mark.parametrize("wrong", [{"port": 70000}, {"port": -1}, {"token": "short"}])
def test_strange_options_are_refused(options, wrong):
    with pytest.raises(SettingsError):
        ViewOptions(run=options.run, **wrong)


def test_verdicts_lie_beside_the_run(tmp_path):
    assert ViewOptions(run=tmp_path / "a").reviews_path == tmp_path / "a.reviews.sqlite"


def test_the_address_holds_any_token():
    token = "a&b c+d#100%"  # noqa: S105
    address = page_address("127.0.0.1", 80, token)
    assert parse_qs(urlsplit(address).query) == {"token": [token]}


def test_slides_that_a_run_remembers_may_lie_in_folders_below(viewed, tmp_path):
    for number, name in enumerate(("s 0", "s2")):
        (tmp_path / f"batch {number}").mkdir()
        shutil.copy(viewed / "slides" / f"{name}.tiff", tmp_path / f"batch {number}")
    run = tmp_path / "run"
    shutil.copytree(viewed / "run", run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two slides have no file
        open_viewing(ViewOptions(run=run, slides=tmp_path)).close()
        found = open_viewing(ViewOptions(run=run))
    for name in ("s 0", "s2"):
        frame = found.frame(found.cohort.named(name))
        assert (frame.has_image, frame.problem) == (True, "")
    found.close()


def test_the_whole_application_is_guarded(viewing, options):
    local = TestClient(guarded_app(viewing, options), base_url="http://localhost")
    assert local.get("/api/run").status_code == 200
    assert local.get("/api/run", headers={"host": "evil.example"}).status_code == 421
    assert local.put("/api/slides/0/reviews", json={}).status_code == 403
    others = ViewOptions(run=options.run, host="0.0.0.0")  # noqa: S104
    known = TestClient(guarded_app(viewing, others, "a long token"), base_url="http://anywhere")
    for path in ("/", "/api/run", "/static/viewer.css", "/slides/0.dzi", "/openapi.json"):
        assert known.get(path).status_code == 401
    assert known.get("/?token=a+long+token").status_code == 200


@pytest.mark.slow
def test_the_command_serves_until_it_is_interrupted(options, tmp_path):
    command = [sys.executable, "-m", "sgpmil", "view", str(options.run), "--port", "0"]
    started = subprocess.Popen(
        [*command, "--no-browser", "--reviews", str(tmp_path / "reviews.sqlite")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    try:
        address = next(line for line in started.stdout if line.startswith("Open ")).split()[1]
        # The server listens once it has read the run.
        while True:
            try:
                with urllib.request.urlopen(f"{address}api/run") as answer:  # noqa: S310
                    assert answer.status == 200
                    break
            except ConnectionRefusedError:
                continue
            except urllib.error.URLError as error:
                if not isinstance(error.reason, ConnectionRefusedError):
                    raise
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=120)
    finally:
        started.kill()
    assert started.returncode == 0, err
    assert "The viewer has ended." in out
    assert "Traceback" not in err
