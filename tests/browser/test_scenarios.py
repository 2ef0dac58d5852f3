"""The scenarios as a student meets them: chosen, played, asked, answered, compared."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from live_site import Site, Visitor
from playwright.sync_api import Locator, Page, expect

from pagelens.viz.scenario_file import SCENARIOS, read_scenario

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

NAMES = sorted(path.stem for path in SCENARIOS.glob("*.toml"))
MOMENTS = """Pagelens.scenarios.player.tracks.flatMap(track => track.stops)"""


def choose(visitor: Visitor, name: str) -> Page:
    page = visitor.open()
    page.get_by_role("tab", name="Scenarios").click()
    page.locator(f"[data-scenario={name}]").click()
    return page


def card(page: Page) -> Locator:
    return page.locator(".scenario-story .card")


def question(page: Page) -> Locator:
    return page.locator(".card[data-kind=question]")


def answers_to(page: Page, text: str) -> list[Any]:
    """The right answers of a question, from the notes of the stream."""
    found = page.evaluate(
        f"text => {MOMENTS}.filter(stop => stop.kind === 'question' && "
        "Pagelens.scenarios.scenario.questions[stop.number].text === text).map(stop => stop.answers)",
        text,
    )
    return list(found[0])


def asked(page: Page) -> str:
    return page.evaluate("Pagelens.scenarios.player.card.question.text")


def answer(page: Page, given: Any) -> None:
    if question(page).locator("input").count():
        question(page).locator("input").fill(str(given))
        page.keyboard.press("Enter")
    else:
        names = read_scenario(SCENARIOS / f"{page.evaluate('Pagelens.scenarios.scenario.name')}.toml")
        words = next(q for q in names.questions if q.text == asked(page)).choices.get(given, given)
        question(page).get_by_role("button", name=words, exact=True).click()


def map_of(page: Page, track: int = 0) -> Any:
    return page.evaluate(f"({{...Pagelens.scenarios.player.tracks[{track}].viewer.map}})")


def test_from_the_click_to_the_first_copy_on_screen(visitor: Visitor) -> None:
    page = choose(visitor, "parallel_sampling")
    started = time.perf_counter()
    expect(question(page)).to_be_visible()
    while "BlockCopied" not in map_of(page)["totals"]:
        go_on = page.get_by_role("button", name="go on")
        if go_on.count():
            go_on.click()
        elif question(page).count():
            answer(page, answers_to(page, asked(page))[0])
        page.wait_for_timeout(20)
    assert time.perf_counter() - started < 5
    expect(page.locator("[data-part=headline-title]").last).to_have_text("Copy-on-write.")
    assert visitor.complaints == []


def test_it_stops_before_the_event_and_grades_the_answer_by_what_comes(visitor: Visitor) -> None:
    page = choose(visitor, "parallel_sampling")
    expect(question(page)).to_contain_text("How many more blocks, of 4 tokens each, do the two forks take?")
    assert "SequenceForked" not in map_of(page)["totals"]
    answer(page, 2)
    expect(card(page)).to_contain_text("No, not 2: it is 0")
    expect(card(page)).to_contain_text("A fork copies the block table, not the blocks")
    page.keyboard.press("Enter")
    expect(page.locator(".card[data-kind=tour]")).to_contain_text("Three tables, two blocks")
    assert map_of(page)["ref_count"][1] == 3
    page.keyboard.press("Enter")
    expect(question(page)).to_contain_text("Which block must be copied")
    answer(page, 1)
    expect(card(page)).to_contain_text("Right: block 1.")
    assert map_of(page)["totals"]["BlockCopied"] == 1


def test_a_block_can_be_chosen_on_the_map_by_keyboard(visitor: Visitor) -> None:
    page = choose(visitor, "parallel_sampling")
    question(page).get_by_role("button", name="skip").click()
    expect(card(page)).to_contain_text("Skipped: it is 0")
    page.get_by_role("button", name="go on").click()
    page.locator(".card[data-kind=tour] button").click()
    expect(question(page)).to_contain_text("Which block must be copied")
    question(page).get_by_role("button", name="hint").click()
    expect(question(page)).to_contain_text("Position 6 divided by the block size")
    expect(question(page)).to_contain_text("The number of the block, or choose it on the map:")
    page.locator(".scenarios canvas.overlay").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(question(page).locator("input")).to_have_value("1")
    question(page).get_by_role("button", name="answer").click()
    expect(card(page)).to_contain_text("Right: block 1.")


@pytest.mark.parametrize("name", NAMES)
def test_each_scenario_can_be_answered_to_its_end(visitor: Visitor, name: str) -> None:
    page = choose(visitor, name)
    scenario = read_scenario(SCENARIOS / f"{name}.toml")
    shown = {variant.name for variant in scenario.variants[:2]}
    expected = [q for q in scenario.questions if not q.variant or q.variant in shown]
    page.wait_for_function("Pagelens.scenarios?.player?.tracks.every(track => track.history && !track.history.growing)")
    for _ in expected:
        page.get_by_role("button", name="next question").click()
        expect(question(page)).to_be_visible()
        answer(page, answers_to(page, asked(page))[0])
        expect(page.locator(".graded.right")).to_contain_text("Right: ")
    expect(page.get_by_role("button", name="next question")).to_be_disabled()
    page.get_by_label("pace").select_option(label="16 steps/s")
    deadline = time.monotonic() + 90
    while not page.locator("[data-kind=score]").count() and time.monotonic() < deadline:
        if page.get_by_role("button", name="go on").count():
            page.get_by_role("button", name="go on").click()
        page.wait_for_timeout(100)
    expect(page.locator("[data-kind=score]")).to_contain_text(f"{len(expected)} of {len(scenario.questions)}")
    expect(page.locator("[data-kind=score]")).to_contain_text(scenario.conclusion)
    assert visitor.complaints == []


def test_two_variants_stand_at_the_same_step(visitor: Visitor) -> None:
    page = choose(visitor, "continuous_batching")
    expect(page.locator(".tracks h3")).to_have_count(2)
    page.wait_for_function("Pagelens.scenarios?.player?.tracks.every(track => track.history && !track.history.growing)")
    left = page.locator(".scenarios .viewer").nth(0)
    left.locator(".scrub").evaluate(
        "(slider, seq) => { slider.value = seq; slider.dispatchEvent(new Event('input')); }", 150
    )
    page.wait_for_function("Pagelens.scenarios.player.tracks[1].viewer.map.seq > 0")
    assert map_of(page, 0)["step"] == map_of(page, 1)["step"] > 5
    finished = [int(text) for text in page.locator("[data-number=finished] b").all_inner_texts()]
    assert finished[0] < finished[1], "static batching has served fewer by now"
    page.get_by_label("shown on the right").select_option(label="Static: a batch at a time")
    expect(page.locator(".tracks h3").nth(1)).to_contain_text("Static")


def test_a_stop_of_one_variant_holds_the_other_at_the_same_step(visitor: Visitor) -> None:
    page = choose(visitor, "preemption_storm")
    expect(question(page)).to_contain_text("Who gives way?")
    assert map_of(page, 0)["step"] == map_of(page, 1)["step"] == 7
    question(page).get_by_role("button", name="A.0").click()
    expect(card(page)).to_contain_text("No, not A.0: it is H.0.")
    assert map_of(page, 0)["totals"]["RequestPreempted"] == 1
    assert "RequestPreempted" not in map_of(page, 1)["totals"]


def test_recomputing_shows_what_it_costs(visitor: Visitor) -> None:
    page = choose(visitor, "preemption_storm")
    page.wait_for_function("Pagelens.scenarios?.player?.tracks.every(track => track.history && !track.history.growing)")
    page.locator(".scenarios .viewer").first.get_by_role("button", name="follow the newest event").click()
    expect(page.locator("[data-number=generated] b")).to_have_text(["140", "140"])
    computed = [int(text) for text in page.locator("[data-number=computed] b").all_inner_texts()]
    assert computed[0] > computed[1]


def whole(page: Page) -> None:
    page.wait_for_selector(".scenarios .viewer")
    page.wait_for_function("Pagelens.scenarios.player.tracks.every(track => track.history && !track.history.growing)")


def test_before_the_first_event_nothing_is_computed(visitor: Visitor) -> None:
    page = choose(visitor, "contiguous_or_paged")
    whole(page)
    page.evaluate("{ const { player } = Pagelens.scenarios; player.pause(); player.restart(); }")
    expect(page.locator("[data-number=computed] b")).to_have_text(["0", "0"])
    expect(page.locator(".scenarios [data-part=headline-title]")).to_have_text(["Before the first event."] * 2)
    expect(page.locator(".scenarios [data-part=pool]").first).to_contain_text("40 blocks of 8 tokens")


def test_what_is_asked_about_is_in_view_and_enter_answers_nothing_by_accident(visitor: Visitor) -> None:
    page = choose(visitor, "preemption_storm")
    expect(question(page)).to_be_focused()
    page.keyboard.press("Enter")
    expect(question(page).locator(".graded")).to_be_empty()
    expect(page.locator(".scenarios .block-tables").first).to_be_visible()
    page.keyboard.press("8")
    expect(card(page)).to_contain_text("Right: H.0.")
    page.keyboard.press("Enter")
    page.locator(".card[data-kind=tour] button").click()
    expect(question(page)).to_contain_text("H.0 gives way")
    height = (page.viewport_size or {"height": 0})["height"]
    boxes = [page.locator(".scenarios .map").nth(track).bounding_box() for track in (0, 1)]
    assert boxes[0] and boxes[1] and boxes[0]["y"] == boxes[1]["y"]
    assert boxes[1]["y"] + boxes[1]["height"] <= height, "the host lane is in view"
    expect(question(page)).to_be_in_viewport(ratio=1)


def test_the_end_of_a_step_tells_its_most_telling_event(visitor: Visitor) -> None:
    page = choose(visitor, "preemption_storm")
    whole(page)
    page.evaluate("""{ const { player } = Pagelens.scenarios; player.pause();
        for (const track of player.tracks) player.move(track, track.endOfStep(8)); }""")
    expect(page.locator(".scenarios [data-part=headline-title]").first).to_have_text("In step 8: Preemption.")
    expect(page.locator(".scenarios [data-part=headline-text]").first).to_contain_text("H gives its blocks back")


def test_a_copied_link_leads_to_the_variant_and_the_moment(visitor: Visitor) -> None:
    page = choose(visitor, "block_size")
    whole(page)
    page.get_by_label("shown on the right").select_option(label="Blocks of 16")
    whole(page)
    page.evaluate("{ const { player } = Pagelens.scenarios; player.pause(); player.move(player.tracks[1], 231); }")
    page.locator(".variant").nth(1).get_by_role("button", name="copy a link").click()
    page.wait_for_url("**/#scenario=block_size&variant=16&seq=231")
    other = visitor.context.new_page()
    other.goto(page.url)
    whole(other)
    linked = "Pagelens.scenarios.player.tracks.find(track => track.variant.name === '16')"
    other.wait_for_function(f"{linked}.viewer.map.seq === 231")
    steps = other.evaluate("Pagelens.scenarios.player.tracks.map(track => track.viewer.map.step)")
    assert steps == [12, 12]
    expect(other.locator(".player button").first).to_have_text("▶ play")


def test_the_end_leads_to_the_next_scenario(visitor: Visitor) -> None:
    page = choose(visitor, "preemption_storm")
    whole(page)
    page.evaluate("""{ const { player } = Pagelens.scenarios; player.dismiss();
        for (const track of player.tracks) player.move(track, track.history.newest); player.finish(); }""")
    expect(page.locator("[data-kind=score]")).to_contain_text("Swap to the host: 140 tokens generated and 200 computed")
    page.get_by_role("button", name="next scenario: Contiguous or paged").click()
    expect(page.get_by_role("heading", name="Contiguous or paged")).to_be_visible()


def test_contiguous_memory_shows_reserved_and_empty_slots(visitor: Visitor) -> None:
    page = choose(visitor, "contiguous_or_paged")
    expect(question(page)).to_contain_text("How many blocks of 8 does the first one take?")
    answer(page, 8)
    page.get_by_role("button", name="go on").click()
    expect(question(page)).to_contain_text("How many requests run at once?")
    answer(page, 5)
    page.get_by_role("button", name="go on").click()
    expect(page.locator(".card[data-kind=tour]")).to_contain_text("Everything is reserved")
    expect(page.locator("[data-number=used] b").first).to_have_text("40 of 40 blocks")
    assert page.evaluate("Pagelens.scenarios.player.tracks.map(track => track.history.header.source)") == [
        "contiguous",
        "engine",
    ]


def test_a_link_opens_a_scenario_and_the_space_key_pauses(visitor: Visitor, site: Site) -> None:
    page = visitor.context.new_page()
    page.goto(f"{site.url}#scenario=on_demand_paging")
    expect(page.get_by_role("heading", name="On-demand paging")).to_be_visible()
    toggle = page.locator(".player button").first
    page.get_by_label("pace").select_option("2 events/s")
    page.get_by_role("button", name="restart").click()
    expect(toggle).to_have_text("❚❚ pause")
    page.keyboard.press("Escape")
    page.locator(".player .state").click()
    page.keyboard.press(" ")
    expect(toggle).to_have_text("▶ play")
    with page.expect_download() as download:
        page.get_by_role("link", name="recording").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert json.loads(lines[0])["run"] == "on_demand_paging:" and '"note"' not in lines[1]
    page.get_by_role("button", name="all scenarios").click()
    expect(page.locator("[data-scenario]")).to_have_count(len(NAMES))


def test_a_scenario_that_fails_says_why(visitor: Visitor, site: Site, tmp_path: Path) -> None:
    text = (SCENARIOS / "chunked_prefill.toml").read_text().replace("prompt_tokens = 100", "prompt_tokens = 1000")
    (tmp_path / "too_long.toml").write_text(text)
    (tmp_path / "broken.toml").write_text("title = <img onerror=alert(1)>")
    other = Site(scenarios=(tmp_path,))
    try:
        page = visitor.context.new_page()
        page.goto(f"{other.url}#scenario=too_long")
        expect(page.locator(".player .state")).to_contain_text("the run failed: ")
        expect(page.locator(".player .state")).to_contain_text("max_model_len")
        page.get_by_role("button", name="all scenarios").click()
        expect(page.locator(".scenario-list .error")).to_contain_text("broken.toml: ")
        assert page.locator(".scenarios img").count() == 0
    finally:
        other.stop()


def test_a_scenario_that_was_left_lets_go_of_its_viewer(visitor: Visitor) -> None:
    page = choose(visitor, "parallel_sampling")
    page.wait_for_function("Pagelens.scenarios.player.tracks[0].history !== null")
    page.locator(".scenario-stage [data-panel=timeline]").click()
    page.evaluate("former = Pagelens.scenarios.player.tracks[0].viewer; theme = former.theme")
    page.evaluate("document.body.classList.toggle('dark')")
    page.wait_for_function("former.theme !== theme")
    page.get_by_role("button", name="all scenarios").click()
    page.evaluate("theme = former.theme; live = Pagelens.live.viewer.theme; document.body.classList.toggle('dark')")
    page.wait_for_function("Pagelens.live.viewer.theme !== live")
    assert page.evaluate("former.theme === theme && Object.keys(former.panels.open).length === 0")
    assert not visitor.complaints
