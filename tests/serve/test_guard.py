"""Which requests are refused: those of foreign pages, host names and forms, and paths other than the page's own."""

import socket

import pytest

from lumos.serve.guard import HOSTS


def test_it_answers_its_own_pages(explorer):
    for host in ("127.0.0.1", "localhost"):
        own = f"{host}:{explorer.port}"
        answer = explorer.ask("/api/whatif", {}, headers={"host": own, "origin": f"http://{own}", "sec-fetch-site": "same-origin"})
        assert answer.status == 200


def test_of_two_origins_both_must_be_its_own(explorer):
    own = f"127.0.0.1:{explorer.port}"
    asked = f"GET /api/status?{explorer.url.partition('?')[2]} HTTP/1.1"
    lines = (asked, f"Host: {own}", "Origin: null", f"Origin: http://{own}")
    with socket.create_connection(("127.0.0.1", explorer.port)) as sent:
        sent.sendall("\r\n".join((*lines, "", "")).encode())
        assert b" 403 " in sent.recv(100)


def test_it_answers_programs_without_an_origin(explorer):
    assert explorer.ask("/api/status").status == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1", "https://127.0.0.1:{port}", "http://127.0.0.1:{port}.evil.example"]
)
@pytest.mark.parametrize("path", ["/", "/api/report", "/api/status"])
def test_a_foreign_origin_is_refused(explorer, origin, path):
    answer = explorer.ask(path, headers={"origin": origin.format(port=explorer.port)})
    assert answer.status == 403
    assert "origin" in answer.json["error"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1:1", "", "127.0.0.1"])
def test_a_foreign_host_name_is_refused(explorer, host):
    answer = explorer.ask("/api/report", headers={"host": host.format(port=explorer.port)})
    assert answer.status == 403


def test_a_request_that_another_site_starts_is_refused(explorer):
    assert explorer.ask("/api/report", headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}).status == 403


def test_a_link_from_another_site_may_open_the_page(explorer):
    assert explorer.ask("/", headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}).status == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""])
def test_what_a_form_can_send_changes_nothing(explorer, kind):
    answer = explorer.ask("/api/whatif", method="POST", headers={"content-type": kind})
    assert answer.status == 403
    assert "application/json" in answer.json["error"]


@pytest.mark.parametrize(
    "path",
    [
        "/static/../html.py",
        "/static/..%2fhtml.py",
        "/static/%2e%2e/html.py",
        "/static/%2e%2e%2f%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/../../../../etc/passwd",
        "/static//etc/passwd",
        "/static/page.html",
        "/static/..\\html.py",
        "/etc/passwd",
    ],
)
def test_no_path_but_the_page_s_own_files_is_read(explorer, path):
    answer = explorer.ask(path)
    assert answer.status == 404
    assert b"root:" not in answer.body
    assert b"def " not in answer.body


def test_no_request_names_a_file(explorer):
    api = explorer.ask("/openapi.json").json
    asked = [p["name"] for methods in api["paths"].values() for m in methods.values() for p in m.get("parameters", [])]
    assert not {"path", "paths", "file", "url"} & set(asked)


def test_every_answer_carries_the_policy(explorer):
    for path in ("/", "/api/status", "/static/page.css", "/nowhere"):
        headers = explorer.ask(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_it_listens_on_the_loopback_address_alone():
    from lumos.cli.serve import listen

    listener = listen(0)
    try:
        assert listener.getsockname()[0] == "127.0.0.1"
        assert "127.0.0.1" in HOSTS
    finally:
        listener.close()


@pytest.mark.parametrize("path", ["/", "/api", "/api/report", "/api/status", "/static/report.js", "/openapi.json"])
@pytest.mark.parametrize("known", ["", "Bearer ", "Bearer wrong", "Bearer \u00e9"])
def test_who_does_not_know_the_token_sees_nothing(explorer, path, known):
    answer = explorer.ask(path, headers={"authorization": known})
    assert answer.status == 403 and "token" in answer.json["error"] and "set-cookie" not in answer.headers


def test_the_address_with_the_token_hands_the_browser_a_cookie(explorer):
    address = explorer.url[explorer.url.index("/?") :]
    cookie = explorer.ask(address, headers={"authorization": ""}).headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert explorer.ask("/api/status", headers={"authorization": "", "cookie": cookie.partition(";")[0]}).status == 200
    assert explorer.ask("/api/status", headers={"authorization": "", "cookie": f"lumos-{explorer.port}=wrong"}).status == 403


def test_an_origin_is_that_of_the_host_that_was_asked(explorer):
    names = {"host": f"localhost:{explorer.port}", "origin": f"http://127.0.0.1:{explorer.port}"}
    assert explorer.ask("/api/status", headers=names).status == 403


@pytest.mark.parametrize("headers", [{"content-length": "1048577"}, {"content-length": "9" * 15}, {"transfer-encoding": "chunked"}])
def test_a_body_without_bound_is_refused_before_it_is_read(explorer, headers):
    sent = explorer.ask("/api/whatif", method="POST", headers={"content-type": "application/json", **headers})
    assert sent.status == 403 and "at most 1048576 bytes" in sent.json["error"]
