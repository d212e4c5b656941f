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
from sgpmil.viewer import patient_protocol
from sgpmil.viewer.reviews import ReviewError
from sgpmil.viewer.server import ViewOptions, guarded_app, open_viewing, page_address, view

from .live_server import live_server


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


def test_verdicts_lie_beside_the_run(tmp_path, options):
    assert ViewOptions(run=tmp_path / "a").reviews_path == tmp_path / "a.reviews.sqlite"
    fold = ViewOptions(run=options.run / "fold-0")
    assert fold.reviews_path == options.run.with_name("run.fold-0.reviews.sqlite")
    validation = ViewOptions(run=options.run / "fold-0" / "validation")
    assert validation.reviews_path == options.run.with_name("run.fold-0.validation.reviews.sqlite")


def test_damaged_verdicts_are_one_sentence_before_anything_is_served(options, tmp_path):
    file = tmp_path / "reviews.sqlite"
    file.write_text("x\n")
    with pytest.raises(ReviewError, match=r"reviews\.sqlite, but they cannot be read"):
        open_viewing(ViewOptions(run=options.run, reviews=file))


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


def test_the_token_may_come_from_a_file_or_the_environment(options, tmp_path, monkeypatch):
    run, file = options.run, tmp_path / "token"
    monkeypatch.delenv("SGPMIL_VIEW_TOKEN", raising=False)
    assert ViewOptions(run=run).read_token() is None
    file.write_text("of the file, long\nand a remark\n")
    monkeypatch.setenv("SGPMIL_VIEW_TOKEN", "of the environment")
    assert ViewOptions(run=run).read_token() == "of the environment"
    assert ViewOptions(run=run, token_file=file).read_token() == "of the file, long"
    assert ViewOptions(run=run, token="as it is given").read_token() == "as it is given"  # noqa: S106
    with pytest.raises(SettingsError, match="but got both"):
        ViewOptions(run=run, token="as it is given", token_file=file)  # noqa: S106
    monkeypatch.setenv("SGPMIL_VIEW_TOKEN", "short")
    with pytest.raises(SettingsError, match="at least 12 letters in SGPMIL_VIEW_TOKEN"):
        ViewOptions(run=run).read_token()
    file.write_text("")
    with pytest.raises(SettingsError, match="at least 12 letters in `token_file`"):
        ViewOptions(run=run, token_file=file).read_token()
    with pytest.raises(SettingsError, match="cannot be read"):
        ViewOptions(run=run, token_file=tmp_path / "absent").read_token()


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /api/run HTTP/1.1\r\nHost: loc",
        b"PUT /api/slides/0/reviews HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
        b"X-Sgpmil: 1\r\n\r\n{",
    ],
)
def test_a_request_that_never_ends_is_hung_up_on(viewing, options, monkeypatch, begun):
    monkeypatch.setattr(patient_protocol, "REQUEST_SECONDS", 0.2)
    with live_server(viewing, options) as address:
        place = urlsplit(address)
        with socket.create_connection((place.hostname, place.port), timeout=60) as client:
            client.sendall(begun)
            while client.recv(4096):  # until the server hangs up
                pass
        # Whole requests on a connection that stays open are answered, however many.
        line = b"GET /api/run HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with socket.create_connection((place.hostname, place.port), timeout=60) as client:
            client.sendall(line)
            assert client.recv(4096).startswith(b"HTTP/1.1 200")


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
