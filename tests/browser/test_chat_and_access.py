"""Chatting, signing in and loading a model, as a class and its instructor do it in real browsers."""

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from chromium import Browser
from live_site import Site, Visitor
from playwright.sync_api import Page, expect

from pagelens.engine.events import PrefixLookup
from pagelens.engine.runner import ScriptedRunner
from pagelens.viz.access import Access

pytestmark = [pytest.mark.browser, pytest.mark.timeout(90)]

HOSTILE = '<img src=x onerror="window.hurt=1"><script>window.hurt=1</script> & <b>bold</b>'


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Everyone may look; the instructor's password is "chalk"."""
    site = Site(access=Access(instructor_password="chalk"))
    yield site
    site.stop()


@pytest.fixture
def another(chromium: Browser) -> Iterator[Callable[[Site], Visitor]]:
    """More visitors, each with a browser profile of their own."""
    contexts = []

    def arrive(site: Site) -> Visitor:
        context = chromium.new_context(viewport={"width": 1280, "height": 900})
        context.set_default_timeout(15_000)
        contexts.append(context)
        return Visitor(context, site)

    yield arrive
    for context in contexts:
        context.close()


def open_chat(visitor: Visitor) -> Page:
    page = visitor.open()
    page.get_by_role("tab", name="Chat").click()
    return page


def ask(page: Page, question: str, max_tokens: int = 30) -> None:
    page.get_by_label("most tokens of an answer").fill(str(max_tokens))
    page.get_by_label("message").fill(question)
    page.get_by_label("message").press("Enter")


def answered(page: Page, number: int) -> None:
    expect(page.locator(".turn")).to_have_count(number)
    expect(page.locator(".turn .hint").last).to_contain_text("finished")


def sign_in(page: Page, password: str) -> None:
    page.get_by_role("button", name="I am the instructor").click()
    page.get_by_label("instructor's password").fill(password)
    page.get_by_label("instructor's password").press("Enter")


def command_from(page: Page, **fields: Any) -> Any:
    """What the server answers to a page that sends what no button offers."""
    send = """async fields => {
        const body = JSON.stringify(fields), headers = { "Content-Type": "application/json" };
        const response = await fetch("pagelens/command", { method: "POST", headers, body });
        return [response.status, await response.json()];
    }"""
    return page.evaluate(send, fields)


# ---------------------------------------------------------------------------------------------------------------- chat


def test_the_second_turn_hits_the_cache_and_says_so(visitor: Visitor, site: Site) -> None:
    page = open_chat(visitor)
    expect(page.get_by_text("answers in turns")).to_be_visible()
    page.get_by_label("message").fill("What is")
    page.get_by_label("message").press("Shift+Enter")
    assert page.get_by_label("message").input_value() == "What is\n"
    ask(page, "What is a hacker?", max_tokens=50)
    answered(page, 1)
    ask(page, "Why is that so?")
    answered(page, 2)
    lookups = [event for event in site.loop.log.read(0) or [] if isinstance(event, PrefixLookup)]
    assert lookups[-1].hit_blocks >= 2
    first, second = page.locator(".turn .hint").all_inner_texts()
    words = f"{lookups[-1].hit_tokens} of {lookups[-1].num_tokens} prompt tokens came from the cache"
    assert first.startswith("0 of 8 prompt tokens came from the cache (0 blocks)")
    assert second.startswith(f"{words} ({lookups[-1].hit_blocks} blocks)")
    assert not visitor.complaints


def test_an_answer_leads_to_its_blocks(visitor: Visitor) -> None:
    page = open_chat(visitor)
    page.evaluate("document.addEventListener('pagelens:show', event => { window.shown = event.detail.sequence; })")
    ask(page, "What is a bug?")
    answered(page, 1)
    page.get_by_role("button", name="show its blocks").click()
    expect(page.get_by_role("tab", name="Live")).to_have_attribute("aria-selected", "true")
    assert page.evaluate("window.shown") == page.evaluate("Pagelens.chat.turns[0].sequence")
    page.get_by_role("tab", name="Chat").click()
    expect(page.locator(".turn")).to_have_count(1)


def test_an_answer_can_be_stopped_and_a_new_chat_begun(visitor: Visitor, site: Site) -> None:
    page = open_chat(visitor)
    ask(page, "What is a hacker?", max_tokens=800)
    page.wait_for_function("Pagelens.chat.last.answer.length > 10")
    expect(page.get_by_role("button", name="send", exact=True).last).to_be_disabled()
    page.get_by_role("button", name="stop").click()
    expect(page.locator(".turn .hint")).to_contain_text("aborted")
    ask(page, "Go on.")
    answered(page, 2)
    page.get_by_role("button", name="new chat").click()
    expect(page.locator(".turn")).to_have_count(0)
    ask(page, "What is a hacker?", max_tokens=800)
    page.wait_for_function("Pagelens.chat.last.answer.length > 10")
    page.get_by_role("button", name="new chat").click()
    page.wait_for_function("Object.values(Pagelens.source.history.map.sequences).every(v => v.status === 'finished')")
    assert not visitor.complaints


def test_what_the_server_refuses_is_said_and_the_question_is_kept(visitor: Visitor) -> None:
    page = open_chat(visitor)
    ask(page, "What is a hacker?", max_tokens=0)
    expect(page.locator(".chat .error")).to_contain_text("max_tokens is 0")
    assert page.get_by_label("message").input_value() == "What is a hacker?"
    expect(page.locator(".turn")).to_have_count(0)
    ask(page, "word " * 3000)
    expect(page.locator(".chat .error")).to_contain_text("shorten the prompt")
    ask(page, "What is a hacker?")
    answered(page, 1)
    expect(page.locator(".chat .error")).to_be_hidden()


def test_hostile_text_is_text_as_prompt_and_as_output(visitor: Visitor, site: Site) -> None:
    engine = site.loop.engine
    tokens = engine.tokenize(HOSTILE)
    model = engine.runner
    engine.runner = ScriptedRunner(
        lambda sequence, _: tokens[(sequence.num_tokens - sequence.num_prompt_tokens) % len(tokens)]
    )
    try:
        page = open_chat(visitor)
        ask(page, HOSTILE, max_tokens=len(tokens))
        answered(page, 1)
        assert page.locator(".turn .asked").inner_text() == HOSTILE
        assert page.locator(".turn .said").inner_text() == HOSTILE
        page.get_by_role("tab", name="Live").click()
        page.get_by_label("prompt").fill(HOSTILE)
        page.get_by_role("button", name="send", exact=True).first.click()
        expect(page.locator("article.sequence").first).to_contain_text("<b>bold</b>")
        for switch in page.locator("[data-panel]").all():
            switch.click()
        page.locator("article.sequence .text").first.click()
        page.wait_for_timeout(500)
    finally:
        engine.runner = model
    assert page.evaluate("window.hurt") is None
    assert page.locator(".pagelens img, .pagelens script, .pagelens b:text('bold')").count() == 0
    assert not [url for url in visitor.urls if url.endswith("/x")]


# ------------------------------------------------------------------------------------------------------ the instructor


def test_a_viewer_looks_and_prompts_and_the_instructor_moves(
    visitor: Visitor, another: Callable[[Site], Visitor], site: Site
) -> None:
    viewer, teacher = visitor.open(), another(site).open()
    for page in (viewer, teacher):
        expect(page.get_by_text("you look on")).to_be_visible()
        expect(page.get_by_role("button", name="halt")).to_be_hidden()
    sign_in(teacher, "cheese")
    expect(teacher.get_by_role("alert").filter(has_text="this is not the password")).to_be_visible()
    teacher.get_by_label("instructor's password").fill("chalk")
    teacher.get_by_role("button", name="sign in").click()
    expect(teacher.get_by_text("you are the instructor")).to_be_visible()
    teacher.get_by_label("max tokens").first.fill("300")
    teacher.get_by_role("button", name="send", exact=True).first.click()
    teacher.get_by_role("button", name="halt").click()
    expect(viewer.locator("[data-part=engine-state]")).to_contain_text("halted")
    for fields in ({"command": "run"}, {"command": "step"}, {"command": "load_model", "model": ""}):
        status, answer = command_from(viewer, **fields)
        assert status == 403 and "for the instructor" in answer["error"]
    assert site.loop.halted
    own = command_from(viewer, command="submit", prompt="A hacker is")[1]["requests"][0]
    theirs = next(name for name in site.loop.engine.requests if name != own)
    assert command_from(viewer, command="abort", request=theirs)[0] == 403
    assert command_from(viewer, command="abort", request=own)[0] == 200
    teacher.get_by_role("button", name="▶ run").click()
    expect(viewer.locator("[data-part=engine-state]")).not_to_contain_text("halted")
    teacher.get_by_role("button", name="sign out").click()
    expect(teacher.get_by_role("button", name="halt")).to_be_hidden()
    assert command_from(teacher, command="halt")[0] == 403


def test_the_instructor_loads_another_model_and_everyone_follows(
    visitor: Visitor, another: Callable[[Site], Visitor], site: Site
) -> None:
    viewer, teacher = open_chat(another(site)), visitor.open()
    ask(viewer, "What is a hacker?", max_tokens=900)
    viewer.wait_for_function("Pagelens.chat.last.answer.length > 10")
    viewer.get_by_role("tab", name="About").click()
    expect(viewer.get_by_role("heading", name="This engine")).to_be_visible()
    expect(viewer.get_by_label("folder or hub id")).to_be_hidden()
    sign_in(teacher, "chalk")
    teacher.get_by_role("tab", name="About").click()
    before = site.loop.log.header.run
    teacher.get_by_label("folder or hub id").fill("/no/such/folder")
    teacher.get_by_role("button", name="load", exact=True).click()
    expect(teacher.locator(".model-form .error")).to_contain_text("there is no model folder '/no/such/folder'")
    assert site.loop.log.header.run == before
    teacher.get_by_label("folder or hub id").fill("")
    teacher.get_by_label("blocks", exact=True).fill("56")
    teacher.get_by_role("button", name="load", exact=True).click()
    expect(teacher.locator(".model-form [role=status]")).to_contain_text("has been loaded, and this run begun")
    assert site.loop.log.header.run != before and site.loop.log.header.num_blocks == 56
    viewer.get_by_role("tab", name="Chat").click()
    expect(viewer.locator(".turn .hint")).to_contain_text("lost: the engine was restarted, or another model loaded")
    ask(viewer, "Are you still there?")
    answered(viewer, 2)
    assert site.loop.log.snapshot().num_blocks == 56


# ----------------------------------------------------------------------------------------------------------- the class


def test_a_password_comes_before_everything(another: Callable[[Site], Visitor]) -> None:
    site = Site(access=Access(password="open sesame"))
    try:
        visitor = another(site)
        page = visitor.context.new_page()
        page.goto(site.url)
        expect(page.get_by_label("This page asks for a password.")).to_be_visible()
        assert page.evaluate("typeof Pagelens") == "undefined"
        page.get_by_label("This page asks for a password.").fill("guess")
        page.get_by_role("button", name="sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("this is not the password")
        page.get_by_label("This page asks for a password.").fill("open sesame")
        page.get_by_role("button", name="sign in").click()
        page.wait_for_function("typeof Pagelens !== 'undefined' && Pagelens.source?.history")
        expect(page.get_by_role("button", name="halt")).to_be_visible()
        expect(page.get_by_role("button", name="I am the instructor")).to_be_hidden()
        site.stop()
        site.options["access"] = Access(password="open sesame")  # as a new process has it, which knows nobody
        site.start()
        expect(page.get_by_label("This page asks for a password.")).to_be_visible(timeout=20_000)
    finally:
        site.stop()


def test_one_browser_too_many_is_told_so_and_let_in_later(another: Callable[[Site], Visitor]) -> None:
    site = Site(max_viewers=1)
    try:
        first, second = another(site), another(site)
        first.open()
        page = second.context.new_page()
        page.goto(site.url)
        expect(page.get_by_role("alert").filter(has_text="1 browsers watch, and 1 is the most")).to_be_visible()
        first.context.close()
        page.wait_for_function("Pagelens.source?.history", timeout=30_000)
        expect(page.get_by_role("alert").filter(has_text="browsers watch")).to_be_hidden()
    finally:
        site.stop()


def test_a_rush_of_browsers_does_not_exceed_the_limit() -> None:
    site = Site(max_viewers=5)
    try:
        sockets = [socket.create_connection(("127.0.0.1", site.port), timeout=10) for _ in range(40)]
        for one in sockets:
            one.sendall(f"GET /pagelens/events HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\n\r\n".encode())
        statuses = [one.recv(64).split()[1] for one in sockets]
        assert (statuses.count(b"200"), statuses.count(b"503")) == (5, 35)
        for one in sockets:
            one.close()
    finally:
        site.stop()


def test_an_answer_that_is_forgotten_unseen_ends_nevertheless(visitor: Visitor) -> None:
    page = open_chat(visitor)
    ask(page, "What is a hacker?", max_tokens=800)
    page.wait_for_function("Pagelens.chat.last.answer.length > 10")
    page.evaluate("delete Pagelens.source.history.map.sequences[Pagelens.chat.last.sequence]; Pagelens.chat.onEvents()")
    expect(page.locator(".turn .hint")).to_contain_text("its end was not seen")
    expect(page.get_by_role("button", name="send", exact=True).last).to_be_enabled()
