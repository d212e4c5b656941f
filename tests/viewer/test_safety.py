import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from sgpmil.viewer.safety import MOST_BODY, Guard, RateLimit, is_loopback

HOSTS = ("localhost", "127.0.0.1", "[::1]")
WRITE = {"x-sgpmil": "1"}


async def answer(request):
    await request.body()
    return PlainTextResponse("secret")


def client(base="http://localhost:8765", **settings):
    routes = [Route("/", answer, methods=["GET", "PUT"]), Route("/x", answer)]
    return TestClient(Guard(Starlette(routes=routes), **settings), base_url=base)


@pytest.mark.parametrize("host", ["localhost:8765", "127.0.0.1:1", "[::1]:80", "LOCALHOST"])
def test_names_of_this_machine_are_answered(host):
    assert client(hosts=HOSTS).get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "localhost.evil.example", "127.0.0.1.x", "", "["]
)
def test_other_names_are_not(host):
    found = client(hosts=HOSTS).get("/", headers={"host": host})
    assert found.status_code == 421
    assert "secret" not in found.text


def test_every_answer_has_the_headers_of_safety():
    for found in (client().get("/"), client(hosts=HOSTS, base="http://evil").get("/")):
        policy = found.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert found.headers["x-content-type-options"] == "nosniff"
        assert found.headers["referrer-policy"] == "no-referrer"


def test_changes_come_from_the_page_itself():
    page = client()
    assert page.put("/").status_code == 403
    assert page.put("/", headers=WRITE).status_code == 200
    other = {**WRITE, "origin": "http://evil.example"}
    assert page.put("/", headers=other).status_code == 403
    assert page.put("/", headers={**WRITE, "origin": "null"}).status_code == 403
    assert page.put("/", headers={**WRITE, "sec-fetch-site": "cross-site"}).status_code == 403
    own = {**WRITE, "origin": "http://localhost:8765", "sec-fetch-site": "same-origin"}
    assert page.put("/", headers=own).status_code == 200


def test_nothing_changes_read_only():
    found = client(read_only=True).put("/", headers=WRITE)
    assert found.status_code == 403
    assert "--read-only" in found.text


def test_sizes_are_bounded():
    page = client()
    assert page.put("/", headers=WRITE, content=b"x" * (MOST_BODY + 1)).status_code == 413
    assert page.get("/?" + "x" * 5000).status_code == 414
    assert page.get("/", headers={"content-length": "-1"}).status_code == 413
    assert page.put("/", headers=WRITE, content=b"x" * MOST_BODY).status_code == 200


def test_changes_are_bounded_in_a_minute():
    page = client(writes_a_minute=3)
    codes = [page.put("/", headers=WRITE).status_code for _ in range(5)]
    assert codes == [200, 200, 200, 429, 429]
    assert page.get("/").status_code == 200


def test_a_rate_recovers_with_time():
    now = [0.0]
    limit = RateLimit(60, lambda: now[0])
    assert [limit.is_exceeded("a") for _ in range(61)] == [False] * 60 + [True]
    assert not limit.is_exceeded("b")
    now[0] = 1.0
    assert [limit.is_exceeded("a") for _ in range(2)] == [False, True]


def test_a_token_lets_in_and_stays_out_of_the_address():
    page = client(token="a long token")  # noqa: S106
    assert page.get("/").status_code == 401
    assert page.get("/?token=wrong").status_code == 401
    found = page.get("/?token=a+long+token&view=slide&name=a%26b", follow_redirects=False)
    assert (found.status_code, found.headers["location"]) == (303, "/?view=slide&name=a%26b")
    cookie = found.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "a long token" not in cookie
    assert page.get("/").text == "secret"


def test_a_program_sends_the_token_in_a_header():
    page = client(token="a long token")  # noqa: S106
    assert page.get("/", headers={"authorization": "Bearer a long token"}).text == "secret"
    assert page.get("/", headers={"authorization": "Bearer wrong"}).status_code == 401


def test_tokens_cannot_be_tried_out():
    page = client(token="a long token", guesses_a_minute=3)  # noqa: S106
    codes = [page.get(f"/?token=guess{i}").status_code for i in range(6)]
    assert codes == [401, 401, 401, 429, 429, 429]
    assert page.get("/?token=a+long+token").status_code == 429


def test_tokens_cannot_be_tried_out_in_a_header():
    page = client(token="a long token", guesses_a_minute=3)  # noqa: S106
    tries = ["guess0", "guess1", "guess2", "guess3", "a long token"]
    codes = [page.get("/", headers={"authorization": f"Bearer {t}"}).status_code for t in tries]
    assert codes == [401, 401, 401, 429, 429]


def test_guesses_of_others_do_not_shut_out_who_is_in():
    page = client(token="a long token", guesses_a_minute=3)  # noqa: S106
    page.get("/?token=a+long+token")
    for _ in range(5):
        TestClient(page.app, base_url="http://localhost:8765").get("/?token=wrong")
    assert page.get("/").text == "secret"


def test_the_cookie_is_no_digest_of_the_token_and_each_server_has_its_own():
    one, other = (client(token="a long token") for _ in range(2))  # noqa: S106
    for page in (one, other):
        page.get("/?token=a+long+token")
    assert not set(one.cookies.keys()) & set(other.cookies.keys())
    assert not set(one.cookies.values()) & set(other.cookies.values())
    # A browser sends the cookies of all ports to each of them.
    both = {**one.cookies, **other.cookies}
    text = "; ".join(f"{name}={value}" for name, value in both.items())
    for page in (one, other):
        page.cookies.clear()
        assert page.get("/", headers={"cookie": text}).text == "secret"


@pytest.mark.parametrize("cookie", ["\xff", "{}=\xe9", "{}", ";;;=", "{}=a b c", "{}="])
def test_strange_cookies_are_no_token(cookie):
    page = client(token="a long token")  # noqa: S106
    text = cookie.format(page.app.cookie)
    found = page.get("/", headers=[(b"cookie", text.encode("latin-1"))])
    assert found.status_code == 401


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost"])
def test_addresses_of_this_machine(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "example.org", "::"])  # noqa: S104
def test_addresses_that_others_reach(host):
    assert not is_loopback(host)
