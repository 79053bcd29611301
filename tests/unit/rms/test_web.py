"""The live page: who may see it, what is sent of it, and that text stays text."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import socket
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from routed import SCRIPT, Routed

from rms import plots
from rms.cli.main import main
from rms.client.connection import ServerError
from rms.web import app, drawings
from rms.web.app import Bridge
from rms.web.views import (
    MOST_BYTES,
    VIEWS,
    Content,
    PageQuery,
    PageState,
    content,
    query,
    relative,
    since,
    stood_still,
    when,
    words,
)
from rms.wire.live import Lane, Live, Mark
from rms.wire.users import HoursGain, JobRow, NodeSpan, PricedSchedule

TOKEN = "of the page"
NASTY = "<img src=x onerror=alert(1)>\"'&"


def live(server: Routed, asked: PageQuery) -> Live:
    body = msgspec.to_builtins(query(asked, 0, 0.0, server.clock[0]))
    status, answer = server.ask("POST", "/live", body)
    assert status == 200, answer
    return msgspec.convert(answer, Live)


class Request:
    """A request to the page's server, as an HTTP server makes it."""

    def __init__(self, bridge: Bridge) -> None:
        self.app = bridge.app()

    def __call__(
        self, method: str, path: str, body: bytes = b"", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        where, _, query = path.partition("?")
        found: list[Any] = []
        sent = [{"type": "http.request", "body": body, "more_body": False}]
        given = {"host": "127.0.0.1:80", **{k.replace("_", "-"): v for k, v in headers.items()}}

        async def receive() -> Any:
            return sent.pop() if sent else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            found.append(message)

        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": where,
            "raw_path": where.encode(),
            "query_string": query.encode(),
            "headers": [(k.encode(), v.encode()) for k, v in given.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        asyncio.run(self.app(scope, receive, send))
        got = {k.decode(): v.decode() for k, v in found[0]["headers"]}
        return found[0]["status"], got, b"".join(each.get("body", b"") for each in found[1:])


class Texts(HTMLParser):
    """The elements of a piece of HTML, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.attributes: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.promise("web-page")
def test_nobody_is_answered_without_the_token_or_from_another_address() -> None:
    ask = Request(Bridge("unix:nowhere", TOKEN))
    for path in ("/", "/page.js", "/page.css", "/drawings.css"):
        status, headers, body = ask("GET", path)
        assert status == 200 and body and TOKEN.encode() not in body
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
    page = ask("GET", "/")[2].decode()
    assert not re.search(r"https?://|style=|\son\w+=|<script>", page)
    expected = b'{"error":"expected the address that rms web has printed, with its token"}'
    own = f"Bearer {TOKEN}"
    for method, path in (("GET", "/stream"), ("POST", "/do/cancel")):
        for headers in ({}, {"authorization": "Bearer x"}, {"authorization": own, "host": "a:80"}):
            status, _, said = ask(method, path, **headers)
            assert (status, said) == (401, expected)
    for path, sentence in (
        ("/stream?view=x", f"expected a view of {', '.join(VIEWS)}, got 'x'"),
        ("/stream?span=x", "expected a number of at most 1e+09 for span, got 'x'"),
        ("/stream?jobs=x", "expected jobs active or over, got 'x'"),
    ):
        status, _, said = ask("GET", path, authorization=own)
        assert (status, json.loads(said)) == (400, {"error": sentence})
    status, _, said = ask("POST", "/do/shutdown", b"{}", authorization=own)
    assert status == 400 and b"expected one of cancel, resize" in said
    for secret in ("", "x", f"Bearer {TOKEN}", basic("x"), "Basic %", basic(TOKEN).lower()):
        status, headers, said = ask("GET", "/read", authorization=secret)
        assert status == 401 and b"expected the token" in said
        assert headers["www-authenticate"].startswith("Basic ")
    assert ask("GET", "/read", authorization=basic(TOKEN), host="a:80")[0] == 401
    assert ask("POST", "/do/cancel", authorization=basic(TOKEN))[0] == 401


def basic(password: str) -> str:
    return f"Basic {base64.b64encode(f'me:{password}'.encode()).decode()}"


@pytest.mark.promise("web-page")
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_can_be_read_without_a_script(server: Routed, view: str) -> None:
    body = SCRIPT | {"name": NASTY, "options": {"array": "1-3", "nodes": [1, 1], "time_s": 60.0}}
    status, answer = server.ask("POST", "/jobs", body)
    assert status == 200, answer
    server.clock[0] += 25.0

    def answer_of(kind: type, _: str, *request: Any) -> object:
        status, answer = server.ask(*request[:2], *map(msgspec.to_builtins, request[2:]))
        assert status == 200, answer
        return msgspec.convert(answer, kind)

    ask = Request(Bridge("unix:there", TOKEN))
    with patch.object(app, "ask", answer_of):
        path = f"/read?view={view}&id={'1_1' if view == 'job' else '1'}"
        status, headers, body = ask("GET", path, authorization=basic(TOKEN))
    assert status == 200, body
    assert "default-src 'none'" in headers["content-security-policy"]
    seen = Texts(body.decode())
    assert not seen.tags & {"script", "button", "dialog", "noscript", "img"}
    assert not {name for name in seen.attributes if name.startswith("on") or name == "style"}
    assert "Not connected" not in seen.text and "As of 1970-01-01" in seen.text
    pieces = dict.fromkeys(re.findall(r'data-(?:part|list)="([\w-]+)"></', body.decode()))
    assert "summary" not in pieces and "jobs" not in pieces and "lanes" not in pieces
    assert (
        'href="#view' not in body.decode()
        and f'href="read?view={VIEW_OF.get(view, view)}' in body.decode()
    )
    expected = {
        "overview": ("1_1 ×1", "Running", "0:00:25", "in 35 s", "25 s ago", "mean 42%"),
        "jobs": ("Running", "0:00:25 / 0:01:00", "Expected to start in 35 s"),
        "job": ("Job 1_1", "1 node", "25 s ago"),
        "array": ("Running 2", "Pending 1"),
        "nodes": ("n1Allocated1_1", "order"),
        "power": ("Jobs", "By source", "model"),
        "users": ("Node hours", "0.01"),
        "malleability": ("There is no replay: ",),
    }[view]
    for text in expected:
        assert text in seen.text, (text, seen.text)


VIEW_OF = {"job": "jobs", "array": "jobs"}


def test_times_are_relative_and_lengths_have_hours() -> None:
    ago = [relative(1000.0 - s, 1000.0) for s in (0, 4, 59, 60, 3599, 7200, 200_000)]
    assert ago == ["now", "now", "59 s ago", "1 min ago", "59 min ago", "2 h ago", "2 d ago"]
    assert relative(1090.0, 1000.0) == "in 1 min"
    still = stood_still(f"{when(940.0)} {since(400.0)}", 1000.0)
    assert Texts(still).text == "1 min ago 0:10:00" and 'title="1970-01-01 00:15:40"' in still


def test_a_bar_is_as_wide_as_its_job_and_changes_with_a_resize() -> None:
    window = plots.TimeWindow(100.0, 200.0, 0.0)
    spans = [(0, 110.0, None), (1, 110.0, 150.0), (2, 150.0, None), (3, 150.0, None)]
    first, second = drawings.segments(spans)
    assert (first.begin_s, first.end_s, first.runs, first.size) == (110.0, 150.0, ((0, 2),), 2)
    assert (second.end_s, second.runs, second.size) == (None, ((0, 1), (2, 4)), 3)
    lanes = [
        Lane(f"n{row + 1}", 1, "allocated", [NodeSpan(f"n{row + 1}", "7", begin, end)], [])
        for row, begin, end in spans
    ]
    mark = Mark("7", 150.0, 2, 3, "warm", 0.1, 8)
    ((key, svg),) = drawings.blocks(lanes, {"7": [mark]}, window, still=True)
    assert key == "7" and "M110.0 0V2H150.0V0Z" in svg and 'viewBox="100.0 0 100.0 4"' in svg
    assert "7 ×2" in svg and "7 ×3" in svg and svg.count('class="mark"') == 1
    fill, edge = (re.findall(f'class="{name}" d="([^"]*)"', svg)[0] for name in ("fill", "edge"))
    assert fill.count("M") == 3 and "M150.0 1V2" in edge and "M150.0 0V1" not in edge
    assert "2 nodes (n1 to n2)" in svg and "3 nodes (n1, n3 to n4)" in svg
    ((_, moved),) = drawings.blocks(lanes, {}, window, still=False)
    later = plots.TimeWindow(101.0, 201.0, 0.0)
    assert [("7", moved)] == list(drawings.blocks(lanes, {}, later, still=False))


@pytest.mark.parametrize("lanes", [1, 12, 20, 32, 64, 128])
def test_rows_of_nodes_have_a_class_and_room_for_names(lanes: int) -> None:
    height, rows = drawings.row_px(lanes), drawings.rows_of_name(lanes)
    style = (Path(app.STATIC) / "page.css").read_text()
    assert re.search(rf"\.h{height}\b", style) and height * rows in (14, 16, 18, 24)
    assert height * lanes <= 520


def test_a_bar_of_many_widths_is_sent_in_pieces_that_fit_a_message() -> None:
    window = plots.TimeWindow(0.0, 4000.0, 0.0)
    spans = [
        NodeSpan(f"n{row}", "7", 20.0 * n, 20.0 * n + (10.0 if row % 2 else 20.0))
        for row in range(12)
        for n in range(100)
    ]
    marks = [Mark("7", 10.0 * n, 6, 12, "spawn", 0.1, 8) for n in range(200)]
    lanes = [
        Lane(f"n{row}", 1, "idle", [span for span in spans if span.node == f"n{row}"], [])
        for row in range(12)
    ]
    pieces = dict(drawings.blocks(lanes, {"7": marks}, window, still=False))
    assert len(pieces) > 10 and max(map(len, pieces.values())) < MOST_BYTES - 200
    drawn = "".join(pieces.values())
    assert drawn.count('class="mark"') == 200 and drawn.count("7 ×12") == 100


def test_a_job_that_is_resized_has_a_bar_of_several_widths(server: Routed) -> None:
    job = server.submit(nodes=[1, 2])
    (row,) = server.ask("GET", f"/jobs?id={job}")[1]
    row |= {"size": 2, "start_s": 1000.0}
    rest = {"step": 1, "strategy": "warm", "boot_s": 1.0, "stall_s": 0.1, "move_s": 0.1}
    rest |= {"bytes": 8, "gb_per_s": 1.0}
    resized = row | {"resizes": [{"at_s": 1050.0, "from": 1, "to": 2, **rest}]}
    bars = [drawings.width_bar(msgspec.convert(r, JobRow), 1100.0, 20) for r in (row, resized)]
    heights = [re.findall(r'width="([\d.]+)%" y="[\d.]+" height="([\d.]+)"', bar) for bar in bars]
    assert heights == [[("100.0", "18.0")], [("50.0", "9.0"), ("50.0", "18.0")]]
    assert 'aria-label="nodes over time: 1, 2"' in bars[1]


def test_what_is_done_is_the_daemons_own_command() -> None:
    told: list[object] = []

    def answer(kind: type, *given: object) -> object:
        told.append(given)
        if given[2] == "/resize":
            raise ServerError("expected a running job, got 7")
        return msgspec.convert({"ids": ["7"]}, kind)

    ask = Request(Bridge("unix:there", TOKEN))
    with patch.object(app, "ask", answer):
        own = {"authorization": f"Bearer {TOKEN}"}
        assert ask("POST", "/do/cancel", b'{"id":"7"}', **own)[::2] == (200, b'{"ids":["7"]}')
        status, _, said = ask("POST", "/do/resize", b'{"id":"7","nodes":2}', **own)
        assert (status, json.loads(said)) == (409, {"error": "expected a running job, got 7"})
        assert ask("POST", "/do/cancel", b'{"all":1}', **own)[0] == 400
    assert [each[1:3] for each in told] == [("POST", "/cancel"), ("POST", "/resize")]


def test_an_update_says_what_has_happened_and_ends_with_its_number(server: Routed) -> None:
    job = server.submit(job_name="first")
    answers = [live(server, PageQuery())]
    server.submit(job_name="second")
    answers.append(live(server, PageQuery()))
    told, asked = [each.seq for each in answers], list[Any]()

    def answer(kind: type, *given: object) -> object:
        asked.append(given[3])
        if not answers:
            raise ServerError("gone", 1)
        return answers.pop(0)

    async def some() -> list[bytes]:
        found: list[bytes] = []
        async for event in bridge._events(PageQuery(), 1):
            found.append(event)
            if b'"lost"' in event:
                return found
        return found

    bridge = Bridge("unix:there", TOKEN)
    with patch.object(app, "ask", answer):
        events = asyncio.run(some())
    numbers = [re.match(rb"id: (\d+)\n", event) for event in events]
    assert [int(number[1]) for number in numbers if number] == told
    assert [each.after for each in asked] == [1, *told] and asked[1].hold_s > 0
    data = [json.loads(event.partition(b"data: ")[2]) for event in events]
    assert "frame" in data[0] and f"job {job} submitted" in json.dumps(data)
    assert "frame" not in data[-2] and data[-1] == {"lost": "gone"}
    assert bridge.pages == 0


def test_of_another_daemon_at_the_same_address_all_is_new(server: Routed) -> None:
    server.submit(job_name="first")
    there, asked = live(server, PageQuery()), list[Any]()

    def answer(kind: type, *given: object) -> object:
        asked.append(given[3])
        if len(asked) > 2:
            raise ServerError("gone", 1)
        return there

    async def some() -> list[Any]:
        found: list[Any] = []
        async for event in Bridge("unix:there", TOKEN)._events(PageQuery(), there.seq + 100):
            found.append(json.loads(event.partition(b"data: ")[2]))
            if "lost" in found[-1]:
                break
        return found

    with patch.object(app, "ask", answer):
        told = asyncio.run(some())
    assert told[0] == {"another": True} and told[-2]["seq"] == there.seq
    assert [each.after for each in asked] == [there.seq + 100, 0, there.seq]


@pytest.mark.parametrize("view", VIEWS)
def test_text_is_shown_as_text_in_every_view(server: Routed, view: str) -> None:
    body = SCRIPT | {"name": NASTY, "options": {"job_name": NASTY, "nodes": [1, 2]}}
    status, answer = server.ask("POST", "/jobs", body)
    assert status == 200, answer
    job = answer["ids"][0]
    found = content(
        PageQuery(view, job, find="" if view != "jobs" else NASTY),
        live(server, PageQuery(view, job)),
    )
    assert max(map(len, PageState().update(found, {"seq": 1}))) <= MOST_BYTES
    whole = found.frame + "".join(found.parts.values())
    seen = Texts(whole)
    assert not seen.tags & {"img", "script", "style"}
    assert not {name for name in seen.attributes if name.startswith("on") or name == "style"}
    if view in ("overview", "job"):
        assert NASTY in seen.text
    assert words("a\x1b[2Jb\nc") == "a\\x1b[2Jb\\nc"


def test_the_saving_of_cheap_hours_is_on_the_page_of_replays(server: Routed) -> None:
    real = PricedSchedule(72e3, 7200.0, 0, 0)
    runs = [
        PricedSchedule(72e3, at_s, 0, 0, 180e3, price) for at_s, price in ((7e3, 3.0), (9.0, 4.0))
    ]
    saved = HoursGain(1, 0.0, 9e3, "cheap-hours", 2, 3, 1, 0, "EUR", False, real, *runs)
    page = PageQuery("malleability")
    texts = Texts("".join(content(page, live(server, page), "", saved).parts.values())).text
    for words_of_it in ("saves 1.00 EUR (25.0%)", "3.00 EUR", "4.00 EUR", "3 jobs, 1 with a"):
        assert words_of_it in texts, texts
    waits = content(page, live(server, page)).parts["saved"]
    assert "The replay is being computed." in waits


def keys(names: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, str]]:
    return st.dictionaries(names, st.text(max_size=3000), max_size=8)


CONTENTS = st.builds(
    lambda frame, parts, rows: Content(
        frame,
        {**parts, **{f"rows/{k}": v for k, v in rows.items()}},
        {"rows": [f"rows/{k}" for k in rows]},
    ),
    st.sampled_from(["one", "two"]),
    keys(st.sampled_from("abc")),
    keys(st.text("0123456789", min_size=1, max_size=3)),
)


@pytest.mark.promise("web-page")
@settings(max_examples=15)
@given(st.lists(CONTENTS, min_size=1, max_size=3))
def test_updates_make_a_page_show_what_there_is_and_are_short(contents: list[Content]) -> None:
    sent, frame = PageState(), None
    parts: dict[str, str] = {}
    lists: dict[str, list[str]] = {}
    for each in contents:
        news = [{"say": "x" * 300}] * 50
        messages = list(sent.update(each, {"seq": 1, "news": news}))
        assert all(len(message) <= MOST_BYTES for message in messages)
        assert sum(len(json.loads(message).get("news", ())) for message in messages) == 50
        for message in map(json.loads, messages):
            frame = message.get("frame", frame)
            parts |= message.get("parts", {})
            lists |= message.get("lists", {})
        assert json.loads(messages[-1])["seq"] == 1
        assert frame == each.frame and {k: parts[k] for k in each.parts} == each.parts
        assert lists["rows"] == each.lists["rows"]


def test_charts_place_what_has_a_time() -> None:
    window = plots.TimeWindow(100.0, 200.0, 50.0)
    spans = [NodeSpan("n1", "7", 110.0, 150.0), NodeSpan("n1", "off", 150.0, None)]
    drawn = plots.lane_svg(Lane("n1", 1, "idle", spans, []), [(120.0, "a <mark>")], window)
    assert 'data-a="60.0" data-b="100.0"' in drawn and 'x="10.000%" width="40.000%"' in drawn
    assert "a &lt;mark&gt;" in drawn and drawn.count("<text") == 2
    drawn = plots.power([(150.0, (4.0, 1.0, 0.0, 0.0)), (200.0, (4.0, 0.0, 0.0, 0.0))], window)
    assert "M0 180.0" in drawn and 'class="boot"' not in drawn and "5 W" in drawn
    drawn = plots.cells(50, {50: "COMPLETED", 51: "COMPLETED", 74: "PENDING"})
    assert drawn.count("<rect") == 2 and "✓✓" in drawn and 'data-first="50"' in drawn


def test_the_command_says_where_the_page_is_and_how_to_get_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rms.cli.client.ask", lambda *_: None)
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: None)
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 50000 10.0.0.2 22")
    monkeypatch.setenv("USER", "me")
    assert main(["web"]) == 0
    address, tunnel = capsys.readouterr().out.splitlines()
    found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/#token=[\w-]{24}", address)
    assert found is not None
    assert tunnel.endswith(f"ssh -L {found[1]}:127.0.0.1:{found[1]} me@10.0.0.2")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["web", "--port", str(port)]) == 2
    assert f"cannot listen on 127.0.0.1:{port}: " in capsys.readouterr().err
