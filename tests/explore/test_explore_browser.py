"""The app and the page in a real browser: a text typed, a head chosen, wide and narrow, and no network asked."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from commands import run as adapos

pytestmark = pytest.mark.slow
needs_gradio = pytest.mark.skipif(importlib.util.find_spec("gradio") is None, reason="gradio is not installed")

TEXT = "for price in prices: total += price; <b>&amp; ${1 + 1} `</script>"
DRAWN = "return document.querySelector('figure[data-name=attention] svg')?.outerHTML ?? ''"
# what would be downloaded
KEEP = """
window.kept = [];
URL.createObjectURL = blob => (kept.push({text: blob.text()}), "#");
HTMLAnchorElement.prototype.click = function () { kept.at(-1).name = this.download; };
"""
# where the text of a list may reach, and where its arrow begins
ENDS = """
const [box, arrow] = ["input", "svg.dropdown-arrow"].map(each => document.querySelector(`#${arguments[0]} ${each}`));
const end = box.getBoundingClientRect().right - parseFloat(getComputedStyle(box).paddingRight);
return [end, arrow.getBoundingClientRect().left];
"""
RINGS = "return [...document.querySelectorAll('[data-ring][visibility=visible]')].map(each => each.dataset.ring)"
NAMES = "return [...document.querySelectorAll('figure[data-name]')].map(each => each.dataset.name)"


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def static(run: Path, words: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("page") / "page.html"
    assert adapos("explore", str(run), "--text", str(words), "--static", str(out))[0] == 0
    return out.as_uri()


@pytest.fixture(scope="module")
def address(run: Path, words: Path) -> Iterator[str]:
    """Of an app of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "adapos", "explore", str(run), "--text", str(words), "--port", str(port)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        # what runs in the background of a shell ignores it, and its children with it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as app:
        try:
            assert app.stdout is not None
            said = app.stdout.readline()
            assert said == f"exploring at http://127.0.0.1:{port}/ (Ctrl-C ends it)\n", app.communicate(timeout=20)
            yield f"http://127.0.0.1:{port}/"
            app.send_signal(signal.SIGINT)
            _, problems = app.communicate(timeout=30)
            assert app.returncode == 0
            assert "Traceback" not in problems
        finally:
            app.kill()


def until(browser: Any, what: Callable[[], Any]) -> Any:
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 40).until(lambda _: what())


def opened(browser: Any, url: str, width: int = 1280) -> str:
    """The first picture, when it is drawn."""
    size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(url)
    drawn: str = until(browser, lambda: browser.execute_script(DRAWN))
    return drawn


def asked(browser: Any) -> list[str]:
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    found = [each["params"]["request"]["url"] for each in events if each["method"] == "Network.requestWillBeSent"]
    return [url for url in found if not url.startswith(("data:", "blob:"))]


def fits(browser: Any, width: int) -> None:
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('figure svg')].map(each => each.getBoundingClientRect())"
    )
    assert len(sizes) == 5  # what rope has
    assert all(each["width"] > 200 and each["x"] >= 0 and each["x"] + each["width"] <= width for each in sizes)


def saved(browser: Any) -> list[str]:
    """The names of the files of all pictures, in place of which nothing is downloaded here; each must be SVG."""
    from selenium.webdriver.common.keys import Keys

    browser.execute_script(KEEP)
    buttons = browser.find_elements("css selector", "figure[data-name] button")
    for button in buttons:
        browser.execute_script("arguments[0].click()", button)
    for pressed in (Keys.ENTER, Keys.SPACE):
        buttons[0].send_keys(pressed)
    script = "const done = arguments[0]; Promise.all(kept.map(each => each.text)).then(done)"
    names, texts = browser.execute_script("return kept.map(each => each.name)"), browser.execute_async_script(script)
    assert len(names) == len(texts) == len(buttons) + 2
    assert names[-2:] == [names[0]] * 2
    for text in texts:
        assert ElementTree.fromstring(text).tag.endswith("svg")
    return [*names[:-2]]


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_drawn_fits_and_asks_nothing(browser: Any, static: str, width: int) -> None:
    opened(browser, static, width)
    fits(browser, width)
    assert asked(browser) == [static]
    assert browser.get_log("browser") == []
    size = "return parseFloat(getComputedStyle(document.querySelector('figure svg .ink')).fontSize) * arguments[0]"
    scale = "const s = document.querySelector('figure svg'); return s.getBoundingClientRect().width / 360"
    assert browser.execute_script(size, browser.execute_script(scale)) >= 10


def test_controls_of_the_page_choose_what_is_drawn(browser: Any, static: str) -> None:
    from selenium.webdriver.support.ui import Select

    drawn = [opened(browser, static)]
    for name, option in (("head", "2"), ("layer", "1"), ("query", "1"), ("model", "2")):
        Select(browser.find_element("id", f"choose-{name}")).select_by_value(option)
        drawn.append(browser.execute_script(DRAWN))
    assert len(set(drawn)) == 5
    assert "adaptive" in browser.execute_script(NAMES)
    said = browser.find_element("css selector", "figure[data-name=products]").text
    assert "kerple + dape has none: no state of its tokens travels" in said
    Select(browser.find_element("id", "choose-model")).select_by_visible_text("tape")
    assert "moved" in browser.execute_script(NAMES)
    assert TEXT in browser.execute_script("return document.querySelector('details pre').textContent")
    assert browser.execute_script(RINGS) == ["1 2"]
    assert "attention-tape-layer-1-head-2-query-53.svg" in saved(browser)
    assert browser.get_log("browser") == []


def test_the_page_follows_the_dark(browser: Any, static: str) -> None:
    opened(browser, static)
    ink = "return getComputedStyle(document.querySelector('figure svg .ink')).fill"
    seen = []
    for theme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": theme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        seen.append(browser.execute_script(ink))
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert seen == ["rgb(28, 30, 33)", "rgb(228, 230, 233)"]


def typed(browser: Any, text: str, *, read: bool = True) -> None:
    """All of the text at once, as if pasted, and then read."""
    script = """
    const box = document.querySelector("#given textarea");
    Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, "value").set.call(box, arguments[0]);
    box.dispatchEvent(new Event("input", {bubbles: true}));
    """
    browser.execute_script(script, text)
    if read:
        browser.find_element("id", "read").click()


def picked(browser: Any, name: str, option: str) -> None:
    from selenium.webdriver.common.keys import Keys

    box = browser.find_element("css selector", f"#{name} input")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", box)
    box.click()
    # a list that is being closed may still be there
    choice = f"#{name} [role=option][aria-label='{option}']"
    found = until(browser, lambda: browser.find_elements("css selector", choice))
    browser.execute_script("arguments[0].dispatchEvent(new MouseEvent('mousedown', {bubbles: true}))", found[-1])
    box.send_keys(Keys.TAB)


def line(browser: Any) -> str:
    found: str = browser.find_element("id", "line").text
    return found


@needs_gradio
@pytest.mark.parametrize("width", [390, 1280])
def test_the_app_is_drawn_fits_and_asks_its_own_server_alone(browser: Any, address: str, width: int) -> None:
    opened(browser, address, width)
    fits(browser, width)
    assert [url for url in asked(browser) if not url.startswith(address)] == []
    assert browser.get_log("browser") == []
    for name in ("model", "beside", "layer", "head"):
        text, arrow = browser.execute_script(ENDS, name)
        assert text <= arrow


@needs_gradio
def test_the_app_draws_what_is_typed_and_chosen(browser: Any, address: str) -> None:
    first = opened(browser, address)
    assert line(browser) == f"{len(TEXT)} bytes, each of them a token."
    picked(browser, "head", "2")
    second = until(browser, lambda: (now := browser.execute_script(DRAWN)) != first and now)
    assert "head 2" in second
    typed(browser, "prices fall and prices rise")
    until(browser, lambda: line(browser) == "27 bytes, each of them a token.")
    third = until(browser, lambda: (now := browser.execute_script(DRAWN)) not in (first, second) and now)
    assert "rope: attention, layer 0, head 2, query 26" in third
    picked(browser, "beside", "kerple + dape")
    fourth = until(browser, lambda: "text-2" in browser.execute_script(NAMES) and browser.execute_script(DRAWN))
    assert "rope and kerple + dape: attention" in fourth
    names = saved(browser)
    assert "attention-rope-kerple-dape-layer-0-head-2-query-26.svg" in names
    assert "text-rope-layer-0-head-2-query-26.svg" in names
    assert browser.get_log("browser") == []


def query(browser: Any) -> tuple[str, str]:
    """What the box of the query says, and of which query the picture is."""
    said = browser.find_element("css selector", "#query input[type=number]").get_property("value")
    return said, browser.execute_script(DRAWN).partition("query ")[2].partition("<")[0]


@needs_gradio
def test_the_box_of_the_query_and_the_pictures_agree(browser: Any, address: str) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(browser, address)
    last = len(TEXT) - 1
    until(browser, lambda: query(browser) == (str(last), str(last)))
    box = browser.find_element("css selector", "#query input[type=number]")
    for keys, left in (("9999", str(last)), (Keys.DELETE, "0")):
        box.send_keys(Keys.CONTROL, "a")
        box.send_keys(keys)
        until(browser, lambda: line(browser).startswith(f"The query must be a whole number from 0 to {last}"))
        box.send_keys(Keys.TAB)
        until(browser, lambda left=left: query(browser) == (left, left))
        until(browser, lambda: line(browser) == f"{len(TEXT)} bytes, each of them a token.")
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys("1.5")
    until(browser, lambda: line(browser).startswith("The query must be a whole number"))
    assert browser.find_elements("css selector", "#query button") == []
    assert browser.get_log("browser") == []


@needs_gradio
def test_a_query_is_kept_while_it_is_there(browser: Any, address: str) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(browser, address)
    box = browser.find_element("css selector", "#query input[type=number]")
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys("30")
    until(browser, lambda: query(browser) == ("30", "30"))
    for name, option, title in (("beside", "tape", "rope and tape: "), ("model", "kerple", "kerple and tape: ")):
        picked(browser, name, option)
        until(browser, lambda title=title: title in browser.execute_script(DRAWN))
        assert query(browser) == ("30", "30")
    typed(browser, "prices fall and prices rise")
    until(browser, lambda: query(browser) == ("26", "26"))
    typed(browser, "prices")
    until(browser, lambda: query(browser) == ("5", "5"))
    typed(browser, TEXT)
    until(browser, lambda: query(browser) == (str(len(TEXT) - 1),) * 2)


@needs_gradio
def test_a_text_that_was_changed_is_read_whatever_is_chosen_next(browser: Any, address: str) -> None:
    opened(browser, address)
    typed(browser, "prices fall and prices rise", read=False)
    picked(browser, "head", "1")
    until(browser, lambda: "rope: attention, layer 0, head 1, query 26<" in browser.execute_script(DRAWN))
    assert line(browser) == "27 bytes, each of them a token."
    typed(browser, "x", read=False)
    picked(browser, "layer", "2")
    until(browser, lambda: line(browser) == "1 byte, one token.")
    typed(browser, " ", read=False)
    picked(browser, "layer", "0")
    until(browser, lambda: line(browser).startswith("The text is empty"))
    assert browser.execute_script(DRAWN) == ""


@needs_gradio
def test_texts_that_cannot_be_shown_are_a_sentence_in_the_app(browser: Any, address: str) -> None:
    opened(browser, address)
    typed(browser, " ")
    until(browser, lambda: line(browser) == "The text is empty; type or paste some, or give a file that holds some.")
    until(browser, lambda: browser.execute_script(DRAWN) == "")
    typed(browser, "a" * 4097)
    until(browser, lambda: line(browser).startswith("The text is 4,097 bytes long, and at most 4,096 are shown"))
    typed(browser, "é<i>")
    until(browser, lambda: line(browser) == "5 bytes, each of them a token.")
    until(browser, lambda: browser.execute_script(DRAWN))
    assert browser.get_log("browser") == []


@needs_gradio
def test_a_long_text_is_drawn_and_its_rollout_asked_for(browser: Any, address: str) -> None:
    opened(browser, address)
    typed(browser, "prices fall, " * 315)  # 4095 bytes
    until(browser, lambda: line(browser).startswith("4,095 bytes, each of them a token. The rollout of so long a text"))
    until(browser, lambda: "query 4094" in browser.execute_script(DRAWN))
    assert "rollout" not in browser.execute_script(NAMES)
    browser.find_element("id", "roll").click()
    until(browser, lambda: "rollout" in browser.execute_script(NAMES))
    assert browser.get_log("browser") == []
