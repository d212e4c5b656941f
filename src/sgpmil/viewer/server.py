"""The server of the viewer: ``sgpmil view``."""

import contextlib
import os
import socket
import threading
import webbrowser
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sgpmil.errors import SettingsError
from sgpmil.notebook import counted
from sgpmil.runs.description import is_run
from sgpmil.runs.material import MaterialOptions
from sgpmil.slides.optional_part import require_package
from sgpmil.viewer.safety import Guard, is_loopback

if TYPE_CHECKING:
    from sgpmil.viewer.viewing import Viewing

_SHORTEST_TOKEN = 12
_TOKEN_VARIABLE = "SGPMIL_VIEW_TOKEN"  # noqa: S105  (a name)
_WILDCARDS = ("0.0.0.0", "::", "")  # noqa: S104  (compared with, not bound to)
_MOST_CONNECTIONS = 1000


@dataclass(frozen=True, kw_only=True)
class ViewOptions(MaterialOptions):
    """Options of `view`.

    Args:
        beside: Another run, to compare with; may be repeated.
        host: Address to serve at. Any but this machine's own needs a token, which is made unless
            one is given.
        port: Port to serve at; 0 chooses a free one.
        token: Token that clients must know. Other users of this machine see it in the list of
            processes; the next option and the environment variable SGPMIL_VIEW_TOKEN hide it.
        token_file: File whose first line is the token.
        read_only: Save no verdicts.
        reviews: File of the verdicts; beside the run by default, RUN.reviews.sqlite, or
            RUN.fold-K.reviews.sqlite of a fold.
        follow_links: Open slides and annotations that are links to other folders.
        no_browser: Do not open a browser.
    """

    beside: tuple[Path, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8765
    token: str | None = None
    token_file: Path | None = None
    read_only: bool = False
    reviews: Path | None = None
    follow_links: bool = False
    no_browser: bool = False

    def __post_init__(self) -> None:
        MaterialOptions.__post_init__(self)
        if not 0 <= self.port <= 65535:
            raise SettingsError(f"Expected --port from 0 to 65535, but got {self.port}.")
        if self.token is not None and self.token_file is not None:
            raise SettingsError("Expected `token` or `token_file`, but got both. Leave one out.")
        _refuse_short(self.token, "`token`")

    def read_token(self) -> str | None:
        """Return the token: the one given, that of the file, or that of the environment.

        Raises:
            SettingsError: The file cannot be read, or the token is too short.
        """
        if self.token is not None:
            return self.token
        if self.token_file is None:
            return _refuse_short(os.environ.get(_TOKEN_VARIABLE) or None, _TOKEN_VARIABLE)
        try:
            lines = self.token_file.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"Expected a token in {self.token_file} (`token_file`), but it cannot be read "
                f"({error}). Write one line of text to it."
            ) from error
        return _refuse_short(lines[0].strip() if lines else "", "`token_file`")

    @property
    def reviews_path(self) -> Path:
        """File of the verdicts."""
        if self.reviews is not None:
            return self.reviews
        place = self.run.resolve()
        # A fold's folder goes where its run goes: its verdicts lie beside the run, too.
        run = next((one for one in reversed(place.parents) if is_run(one)), place)
        name = ".".join((run.name, *place.relative_to(run).parts))
        return run.with_name(f"{name}.reviews.sqlite")


def _refuse_short(token: str | None, where: str) -> str | None:
    if token is not None and len(token) < _SHORTEST_TOKEN:
        raise SettingsError(
            f"Expected a token of at least {_SHORTEST_TOKEN} letters in {where}, but got "
            f"{len(token)}. Leave it out to have one made."
        )
    return token


def open_viewing(options: ViewOptions) -> "Viewing":
    """Read a run, and those beside it, for a viewer.

    Raises:
        MissingPartError: Packages of the viewer are not installed.
        SgpmilError: A run, a folder or the verdicts cannot be read.
    """
    for name in ("fastapi", "uvicorn", "PIL"):
        require_package(name, purpose="view a run", install="'sgpmil[viewer,slides]'")
    _import_in_one_thread()
    from sgpmil.viewer.cohort import Cohort, ViewedRun
    from sgpmil.viewer.reviews import Reviews
    from sgpmil.viewer.viewing import Viewing

    reviews = Reviews(options.reviews_path, read_only=options.read_only)
    reviews.verdicts()  # a damaged file is known before anything is served
    run = ViewedRun(options)
    others, first = [], len(run.cases)
    for number, path in enumerate(options.beside, start=1):
        others.append(ViewedRun(MaterialOptions(run=path), number, first))
        first += len(others[-1].cases)
    folder = options.slides or _common_folder(run.material.sources.files.values())
    return Viewing(
        Cohort(run, others),
        reviews,
        slide_folder=None if options.follow_links else folder,
        follow_links=options.follow_links,
    )


def guarded_app(viewing: "Viewing", options: ViewOptions, token: str | None = None) -> Guard:
    """Make the application of a viewer with all its checks.

    Args:
        viewing: Everything that it shows.
        options: Address and rights.
        token: Token that clients must know; None serves this machine alone.
    """
    from sgpmil.viewer.app import create_app

    hosts = {"localhost", "127.0.0.1", "[::1]"} if is_loopback(options.host) else set()
    if hosts:
        hosts.add(options.host.lower())
    app = create_app(viewing, read_only=options.read_only)
    return Guard(app, hosts=hosts, token=token, read_only=options.read_only)


def view(options: ViewOptions, say: Callable[[str], None] = lambda _: None) -> None:
    """Serve the pages of a run until Ctrl-C.

    Args:
        options: The run, its slides, the address and the rights.
        say: Receives sentences for the person who started it.

    Raises:
        SettingsError: The address cannot be used.
        SgpmilError: The run cannot be read.
    """
    require_package("uvicorn", purpose="view a run", install="'sgpmil[viewer,slides]'")
    import uvicorn

    from sgpmil.viewer.patient_protocol import PatientProtocol

    token = options.read_token()
    with _bound(options.host, options.port) as place:
        viewing = open_viewing(options)
        if token is None and not is_loopback(options.host):
            token = token_urlsafe(24)
        app: Any = guarded_app(viewing, options, token)
        config = uvicorn.Config(
            app,
            http=PatientProtocol,
            log_level="warning",
            access_log=False,
            server_header=False,
            date_header=False,
            ws="none",
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_keep_alive=15,
            timeout_graceful_shutdown=2,
            h11_max_incomplete_event_size=2**14,
        )
        address = page_address(options.host, place.getsockname()[1], token)
        cohort = viewing.cohort
        say(f"{counted(len(cohort.run.cases), 'slide')} of {cohort.run.name}.")
        missing = openseadragon_missing()
        if missing:
            say(missing)
        say(f"Open {address}")
        if not is_loopback(options.host):
            say("Others on the network can open it with this token. Traffic is not encrypted.")
        say("Ctrl-C ends it.")
        if not options.no_browser:
            timer = threading.Timer(1.0, _open_browser, [address])
            timer.daemon = True
            timer.start()
        threading.Thread(target=viewing.knowledge[0].limits, daemon=True).start()
        server = uvicorn.Server(config)
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[place])
        say("The viewer has ended.")


def page_address(host: str, port: int, token: str | None) -> str:
    """Return the address of the page.

    Example:
        >>> page_address("::1", 80, None), page_address("0.0.0.0", 80, "t")[-12:]
        ('http://[::1]:80/', ':80/?token=t')
    """
    name = socket.gethostname() if host in _WILDCARDS else host
    name = f"[{name}]" if ":" in name else name
    return f"http://{name}:{port}/" + ("" if token is None else f"?token={quote(token)}")


def openseadragon_missing() -> str:
    """Return a sentence that says how to get OpenSeadragon; empty where it is there."""
    from sgpmil.viewer.vendor import OPENSEADRAGON, VENDOR

    if (VENDOR / OPENSEADRAGON.file).exists():
        return ""
    return (
        "OpenSeadragon, which zooms slides, is not installed. Get it once with npm: "
        "python -m sgpmil.viewer.vendor"
    )


@contextlib.contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """Bind an address before anything is read, so that a port in use is known at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends without delay only where the protocol is named: 40 ms an answer otherwise.
    place = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        place.bind((host, port))
    except (OSError, OverflowError) as error:
        place.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise SettingsError(
            f"Expected a free address to serve at, but {host}:{port} cannot be used ({reason}). "
            "Choose another with --port or --host; --port 0 takes a free one."
        ) from error
    try:
        yield place
    finally:
        place.close()


def _import_in_one_thread() -> None:
    """Import what threads need: some libraries cannot be imported by two at once."""
    for name in ("cv2", "PIL.Image", "PIL.JpegImagePlugin", "PIL.PngImagePlugin", "tifffile"):
        with contextlib.suppress(ImportError):
            import_module(name)


def _open_browser(address: str) -> None:
    with contextlib.suppress(webbrowser.Error, OSError):
        webbrowser.open(address)


def _common_folder(files: Any) -> Path | None:
    """Return the folder that holds the slides which a run remembers, perhaps in folders below."""
    places = [Path(file).parent for file in files]
    return Path(os.path.commonpath(places)) if places else None
