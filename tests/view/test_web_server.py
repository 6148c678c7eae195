"""The server of a view: what it answers, and above all what it refuses."""

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from report.making import example

import doppler as dp
from doppler.errors import OutputError
from doppler.view.config import ViewConfig
from doppler.view.session import ViewContent, ViewSession
from doppler.view.web_server import ViewServer
from doppler.view.what_if import WhatIf

CONFIG = ViewConfig(max_body_bytes=5000)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ViewServer]:
    graph, topology, assignments, traces = example()
    assignment = assignments["critical-path"]
    content = ViewContent("a title", {"given": traces["critical-path"]}, graph, topology)
    what_if = WhatIf(dp.Problem(graph, topology), assignment)
    session = ViewSession(content, what_if, save=tmp_path / "saved.json")
    with ViewServer(session, config=CONFIG) as started:
        thread = threading.Thread(target=lambda: started.serve_forever(poll_interval=0.01))
        thread.start()
        yield started
        started.shutdown()
        thread.join()


def ask(server: ViewServer, method: str, path: str, body: bytes | None = None, **headers):
    """Status, headers and body of the answer; headers that are None are left out."""
    own = f"http://127.0.0.1:{server.server_port}"
    usual = {"Host": own[7:], "X-Doppler-Token": server.token}
    if method == "POST":
        usual |= {"Origin": own, "Content-Type": "application/json"}
    usual |= {key.replace("_", "-"): value for key, value in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest(method, path, skip_host=True)
    if body is not None:
        usual.setdefault("Content-Length", str(len(body)))
    for key, value in usual.items():
        if value is not None:
            connection.putheader(key, value)
    connection.endheaders(body)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), text


def edit(server: ViewServer, **values):
    body = json.dumps({"do": "speed", "index": 0, "value": 2.0, "since": 0} | values).encode()
    return ask(server, "POST", f"/{server.token}/edit", body)


def test_the_page(server: ViewServer) -> None:
    status, headers, page = ask(server, "GET", f"/{server.token}/", X_Doppler_Token=None)
    assert status == 200
    assert page.startswith(b"<!doctype html>")
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in headers


def test_it_listens_on_loopback_only(server: ViewServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.server_port}/{server.token}/"
    with pytest.raises(OutputError, match="cannot listen on port"):
        ViewServer(server.session, port=server.server_port)


def test_each_start_has_a_token_of_its_own(server: ViewServer) -> None:
    with ViewServer(server.session) as other:
        assert other.token != server.token
        assert len(other.token) >= 32


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "[::1]:{port}", "", None],
)
def test_other_names_of_the_host_are_refused(server: ViewServer, host: str | None) -> None:
    named = None if host is None else host.format(port=server.server_port)
    status, _, text = ask(server, "GET", f"/{server.token}/", Host=named)
    assert status == 403
    assert b"<!doctype" not in text
    assert server.token.encode() not in text


def test_localhost_is_a_name_of_this_host(server: ViewServer) -> None:
    assert ask(server, "GET", f"/{server.token}/", Host=f"localhost:{server.server_port}")[0] == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1", ""]
)
def test_requests_of_other_pages_are_refused(server: ViewServer, origin: str) -> None:
    origin = origin.format(port=server.server_port)
    body = json.dumps({"do": "reset", "since": 0}).encode()
    assert ask(server, "POST", f"/{server.token}/edit", body, Origin=origin)[0] == 403
    if origin:
        assert ask(server, "GET", f"/{server.token}/state", Origin=origin)[0] == 403
    crossing = {"Sec_Fetch_Site": "cross-site"}
    assert ask(server, "GET", f"/{server.token}/", **crossing)[0] == 403


def test_a_change_needs_an_origin_and_the_token_twice(server: ViewServer) -> None:
    body = json.dumps({"do": "reset", "since": 0}).encode()
    path = f"/{server.token}/edit"
    assert ask(server, "POST", path, body, Origin=None)[0] == 403
    assert ask(server, "POST", path, body, X_Doppler_Token=None)[0] == 403
    assert ask(server, "POST", path, body, X_Doppler_Token="guessed")[0] == 403
    assert ask(server, "POST", "/guessed/edit", body)[0] == 404
    assert ask(server, "GET", f"/{server.token}/state", X_Doppler_Token=None)[0] == 403
    assert ask(server, "POST", path, body)[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/favicon.ico", "/{token}", "/{token}/../../etc/passwd", "/{token}//etc/passwd"),
        *("/{token}/%2e%2e/%2e%2e/etc/passwd", "/{token}/saved.json", "/{token}/report.js"),
        *("/{token}/save", "/{token}/state/", "/{token}x/", "/é/"),
    ],
)
def test_nothing_else_is_served(server: ViewServer, path: str) -> None:
    path = path.format(token=server.token).encode().decode("latin-1")
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection._validate_path = lambda _: None  # type: ignore[method-assign]
    connection._encode_request = lambda text: text.encode("latin-1")  # type: ignore[method-assign]
    connection.putrequest("GET", path, skip_host=True)
    connection.putheader("Host", f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 404
    assert b"root:" not in answer.read()
    connection.close()


@pytest.mark.parametrize("method", ["HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW"])
def test_other_methods_are_refused(server: ViewServer, method: str) -> None:
    assert ask(server, method, f"/{server.token}/")[0] == 405


def test_large_and_odd_bodies_are_refused(server: ViewServer) -> None:
    path = f"/{server.token}/edit"
    assert ask(server, "POST", path, b" " * 5001)[0] == 413
    assert ask(server, "POST", path, b"{}", Content_Length="9" * 30)[0] == 413
    assert ask(server, "POST", path, b"{}", Content_Length="-1")[0] == 411
    assert ask(server, "POST", path, b"0\r\n\r\n", Transfer_Encoding="chunked")[0] == 411
    assert ask(server, "POST", path, b"{}", Content_Type="text/plain")[0] == 415
    assert ask(server, "POST", path, b"{}", Content_Type=None)[0] == 415
    for body in (b"{", b"[]", b"1", b"null", b"\xff", b"[" * 4000, b'{"do": "format"}'):
        assert ask(server, "POST", path, body)[0] == 400


@pytest.mark.parametrize(
    "values",
    [
        {"do": "write"},
        {"do": ["speed"]},
        {"index": "0"},
        {"index": True},
        {"value": "2"},
        {"value": None},
        {"since": "0"},
        {"path": "/etc/passwd"},
        {"do": "move", "vertices": [0], "device": 0},
        {"do": "move", "vertices": [1.5], "device": 0, "index": 0, "value": 1},
    ],
)
def test_changes_that_are_none(server: ViewServer, values) -> None:
    status, _, text = edit(server, **values)
    assert status == 400
    assert json.loads(text)["error"]
    assert server.session._what_if.revision == 0


def test_changes_that_cannot_be_made(server: ViewServer) -> None:
    for values in ({"index": 99}, {"value": -1.0}, {"value": 1e300}):
        status, _, text = edit(server, **values)
        assert status == 200
        assert json.loads(text).keys() == {"refused"}
    assert server.session._what_if.revision == 0


def test_a_change_and_what_other_pages_see_of_it(server: ViewServer) -> None:
    status, _, text = edit(server)
    said = json.loads(text)
    assert status == 200
    assert said["whatIf"]["speed"][0] == 2.0
    assert said["trace"]["makespan"] == server.session._what_if.outcome.trace.makespan_s
    seen = json.loads(ask(server, "GET", f"/{server.token}/state?since=0&runs=")[2])
    assert seen["trace"]["makespan"] == said["trace"]["makespan"]
    path = f"/{server.token}/state?since=1&runs="
    assert json.loads(ask(server, "GET", path)[2]).keys() <= {"whatIf", "bound"}
    assert json.loads(ask(server, "GET", path)[2]) == {}
    for odd in ("since=x", "since=-1", f"since={'9' * 40}", "", "since=1&since=2"):
        assert ask(server, "GET", f"/{server.token}/state?{odd}")[0] == 200


def test_the_one_file_that_is_written(server: ViewServer, tmp_path: Path) -> None:
    body = json.dumps({"path": "/tmp/elsewhere.json"}).encode()  # a name is not listened to
    graph = example()[0]
    move = json.dumps(
        {"do": "move", "vertices": graph.assigned[:9].tolist(), "device": 2, "since": 0}
    )
    assert ask(server, "POST", f"/{server.token}/edit", move.encode())[0] == 200
    assert server.session.has_unsaved
    status, _, text = ask(server, "POST", f"/{server.token}/save", body)
    assert (status, json.loads(text)) == (200, {"saved": str(tmp_path / "saved.json")})
    assert [path.name for path in tmp_path.iterdir()] == ["saved.json"]
    assert not server.session.has_unsaved
    assert set(dp.read_assignment(tmp_path / "saved.json").devices[graph.assigned[:9]]) == {2}
    (tmp_path / "saved.json").write_text("mine")
    status, _, text = ask(server, "POST", f"/{server.token}/save", b"{}")
    assert status == 200
    assert "not written by doppler" in json.loads(text)["refused"]
    assert (tmp_path / "saved.json").read_text() == "mine"


def test_without_a_graph_nothing_can_be_changed() -> None:
    traces = {"only": example()[3]["critical-path"]}
    session = ViewSession(ViewContent("t", traces, message="no graph"))
    with ViewServer(session) as server:
        thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01))
        thread.start()
        root = f"/{server.token}/"
        answers = [ask(server, "POST", root + what, b"{}") for what in ("edit", "save")]
        page = ask(server, "GET", f"/{server.token}/")
        server.shutdown()
        thread.join()
    assert [status for status, _, _ in answers] == [400, 400]
    assert page[0] == 200
