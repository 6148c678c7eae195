"""The server of a view: on this machine only, for one page, with one file that it may write.

A request must name this server as its host, which another name that leads here (DNS rebinding)
does not; come from no other page; and know the token, which is new at each start. Nothing is
served but the page and what it asks for.
"""

import hmac
import json
import logging
import secrets
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from doppler.errors import DopplerError, OutputError
from doppler.report.page import content_policy
from doppler.view.config import ViewConfig
from doppler.view.session import ViewSession

LOOPBACK = "127.0.0.1"
TOKEN_HEADER = "X-Doppler-Token"
JSON_TYPE, HTML_TYPE = "application/json", "text/html; charset=utf-8"
logger = logging.getLogger(__name__)


class ViewServer(ThreadingHTTPServer):
    """Serves a session until it is shut down or interrupted."""

    daemon_threads = True

    def __init__(
        self, session: ViewSession, *, port: int = 0, config: ViewConfig | None = None
    ) -> None:
        """On a port of the loopback device; 0: one that is free."""
        self.session, self.config = session, config or ViewConfig()
        self.token = secrets.token_urlsafe(24)
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OutputError(
                f"cannot listen on port {port}: {reason}", hint="choose another --port"
            ) from None
        self.hosts = frozenset(f"{name}:{self.server_port}" for name in (LOOPBACK, "localhost"))

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is no event."""
        logger.debug("a connection broke", exc_info=True)


class _RefusedError(Exception):
    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "dop-view", ""

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.config.timeout_s)

    def log_message(self, *args: Any) -> None:
        logger.debug("%s", args)

    def __getattr__(self, name: str) -> Callable[[], None]:
        """What answers a method of HTTP: `do_GET`, `do_POST`; all others are refused."""
        if not name.startswith("do_"):
            raise AttributeError(name)
        respond = {"do_GET": self._get, "do_POST": self._post}.get(name, self._no_method)
        return lambda: self._answer(respond)

    def _answer(self, respond: Callable[[str], str | dict[str, Any]]) -> None:
        try:
            answer = respond(self._checked_path())
            status = HTTPStatus.OK
        except _RefusedError as refused:
            status, answer = refused.status, {"error": str(refused)}
        except DopplerError as error:
            hint = f" ({error.hint})" if error.hint else ""
            status, answer = HTTPStatus.BAD_REQUEST, {"error": f"{error.message}{hint}"}
        except OSError:
            raise  # the connection broke
        except Exception:
            logger.exception("a request failed")
            status, answer = HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "the request failed"}
        self._send(status, answer)

    def _send(self, status: HTTPStatus, answer: str | dict[str, Any]) -> None:
        is_page = isinstance(answer, str)
        body = (answer if isinstance(answer, str) else json.dumps(answer)).encode("utf-8")
        self.send_response(status)
        self.send_header("Content-Type", HTML_TYPE if is_page else JSON_TYPE)
        self.send_header("Content-Length", str(len(body)))
        policy = content_policy(connects=True) if is_page else "default-src 'none'"
        self.send_header("Content-Security-Policy", f"{policy}; frame-ancestors 'none'")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cache-Control", "no-store")
        if status != HTTPStatus.OK:  # what is left of the request is not read
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _checked_path(self) -> str:
        """The path below the token; refused unless the request may know it."""
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0] not in self.server.hosts:
            raise _RefusedError(HTTPStatus.FORBIDDEN, "this server has another name")
        origins = self.headers.get_all("Origin") or []
        if any(origin != f"http://{hosts[0]}" for origin in origins):
            raise _RefusedError(HTTPStatus.FORBIDDEN, "requests of other pages are refused")
        if self.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            raise _RefusedError(HTTPStatus.FORBIDDEN, "requests of other pages are refused")
        token, slash, path = urlsplit(self.path).path.removeprefix("/").partition("/")
        if not self._is_token(token) or not slash:
            raise _RefusedError(HTTPStatus.NOT_FOUND, "open the address that `dop view` printed")
        return path

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "replace"), self.server.token.encode())

    def _check_token_header(self) -> None:
        if not self._is_token(self.headers.get(TOKEN_HEADER, "")):
            raise _RefusedError(HTTPStatus.FORBIDDEN, "the token is missing: load the page again")

    def _get(self, path: str) -> str | dict[str, Any]:
        if path == "":
            return self.server.session.page(self.server.token)
        if path != "state":
            raise _RefusedError(HTTPStatus.NOT_FOUND, "there is no such thing here")
        self._check_token_header()
        asked = parse_qs(urlsplit(self.path).query)
        since = asked.get("since", ["0"])[0]
        known = int(since) if since.isascii() and since.isdigit() and len(since) < 16 else -1
        return self.server.session.state(known, asked.get("runs", [""])[0])

    def _post(self, path: str) -> dict[str, Any]:
        if path not in ("edit", "save"):
            raise _RefusedError(HTTPStatus.NOT_FOUND, "there is no such thing here")
        if not self.headers.get("Origin"):
            raise _RefusedError(HTTPStatus.FORBIDDEN, "a change must come from the page")
        self._check_token_header()
        request = self._body()
        if path == "edit":
            return self.server.session.edit(request)
        return self.server.session.save()

    def _body(self) -> Any:
        if self.headers.get("Content-Type", "").partition(";")[0].strip() != JSON_TYPE:
            raise _RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send {JSON_TYPE}")
        length = self.headers.get("Content-Length", "")
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdigit()):
            raise _RefusedError(HTTPStatus.LENGTH_REQUIRED, "say how long the request is")
        if len(length) > 12 or int(length) > self.server.config.max_body_bytes:
            raise _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the request is too large")
        try:
            return json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "the request is no JSON") from None

    def _no_method(self, path: str) -> dict[str, Any]:
        raise _RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, f"{self.command} is not allowed here")
