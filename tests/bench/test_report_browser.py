"""The page of the report in a real browser: wide and narrow, light and dark, by mouse and by keyboard."""

import json
from pathlib import Path
from typing import Any

import pytest
import runs

from adapos.bench import report

pytestmark = pytest.mark.slow

EVIL = "<b>x</b> & </script>"
LEFT = """
return [...document.querySelector("table.sorted").tBodies[0].rows].map(row => row.cells[0].dataset.value)
"""
COLOURS = """
const of = (each, what) => getComputedStyle(document.querySelector(each))[what];
return [of("body", "backgroundColor"), of("body", "color"), of(".xtick text", "fill")]
"""
SHOWN = """
const all = [...document.querySelectorAll(".plot")];
return all.every(each => each.querySelector(".main-svg") && each.querySelector(".xtick"))
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report.write(runs.folder(tmp_path_factory.mktemp("whole"), runs.whole()))


def opened(browser: Any, page: Path, width: int = 1400) -> Any:
    """Loaded once for each width: a test leaves the page as the next may find it."""
    from selenium.webdriver.support.ui import WebDriverWait

    size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width < 600}
    if browser.current_url != page.as_uri() or browser.execute_script("return innerWidth") != width:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        themed(browser, "light")
        browser.get_log("performance")
        browser.get(page.as_uri())
        WebDriverWait(browser, 30).until(lambda driver: driver.execute_script(SHOWN))
    return browser


def themed(browser: Any, theme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def hovered(browser: Any, place: str, trace: int) -> str:
    """What is said over the last point of a line."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.support.ui import WebDriverWait

    plot = browser.find_element("id", place)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
    point = plot.find_elements("css selector", ".scatterlayer .trace")[trace].find_elements(
        "css selector", ".points path"
    )[-1]
    ActionChains(browser).move_to_element(point).perform()
    WebDriverWait(browser, 5).until(lambda _: plot.find_elements("css selector", ".hovertext"))
    return plot.find_element("css selector", ".hovertext").get_attribute("textContent")


@pytest.mark.parametrize("width", [390, 1400])
def test_the_page_fits_is_drawn_and_asks_nothing_in_light_and_in_dark(browser: Any, whole: Path, width: int) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    opened(browser, whole, width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    script = "return [...document.querySelectorAll('.plot')].map(x => x.querySelector('.main-svg').clientWidth)"
    assert all(100 < drawn <= width for drawn in browser.execute_script(script))
    drawn = browser.find_element("id", "text-perplexity-last-64-curves")
    assert len(drawn.find_elements("css selector", "path.js-line")) == 2 * len(runs.ENCODINGS)
    light, dark = ["rgb(255, 255, 255)", *["rgb(28, 30, 33)"] * 2], ["rgb(21, 23, 26)", *["rgb(228, 230, 233)"] * 2]
    assert browser.execute_script(COLOURS) == light
    # a page that is open follows
    themed(browser, "dark")
    WebDriverWait(browser, 20).until(lambda driver: driver.execute_script(COLOURS) == dark)
    assert [entry["message"] for entry in browser.get_log("browser")] == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [each["params"]["request"]["url"] for each in events if each["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith("data:")] == [whole.as_uri()]


def test_hovering_says_the_encoding_and_its_number(browser: Any, whole: Path) -> None:
    opened(browser, whole)
    said = hovered(browser, "text-perplexity-last-64-curves", -6)
    assert "rope" in said
    assert "8,192: 157." in said


def test_the_table_sorts_by_click_and_by_keyboard(browser: Any, whole: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(browser, whole)
    by = {button.text: button for button in browser.find_elements("css selector", "table.sorted th button")[:8]}
    assert browser.execute_script(LEFT) == list(runs.ENCODINGS)
    by["8,192"].click()
    best_first = [
        "kerple + dape(kernel=3)",
        "kerple",
        "alibi",
        "tape(form='additive')",
        "rope",
        "learned(longest=2048)",
    ]
    assert browser.execute_script(LEFT) == best_first
    by["8,192"].send_keys(Keys.ENTER)
    # what diverged stays last
    assert browser.execute_script(LEFT) == [*best_first[4::-1], best_first[5]]
    sorts = [th.get_attribute("aria-sort") for th in browser.find_elements("css selector", "table.sorted th")[:8]]
    assert sorts == [None] * 7 + ["descending"]
    by["8,192"].send_keys(Keys.SHIFT + Keys.TAB)
    browser.switch_to.active_element.send_keys(Keys.SPACE)
    assert by["4,096"].find_element("xpath", "..").get_attribute("aria-sort") == "ascending"
    by["encoding"].send_keys(Keys.ENTER)
    assert browser.execute_script(LEFT) == sorted(runs.ENCODINGS)


def test_controls_choose_what_is_drawn(browser: Any, whole: Path) -> None:
    from selenium.webdriver.support.ui import Select

    opened(browser, whole)
    quality, cost = (Select(each) for each in browser.find_elements("css selector", "select[data-of=cost]"))
    assert quality.first_selected_option.text == "text: perplexity, protocol 'last 64', at 8,192"
    titles = "return ['xtitle', 'ytitle'].map(x => document.querySelector('#cost .' + x).textContent)"
    assert browser.execute_script(titles) == ["tokens a second in training", "perplexity"]
    cost.select_by_index(1)
    quality.select_by_visible_text("passkey(digits=5): accuracy, in exams, at 256")
    assert browser.execute_script(titles) == ["peak memory, MiB", "accuracy"]
    hidden = browser.find_elements("css selector", "select[data-of=loss]")
    assert [each.is_displayed() for each in hidden] == [False]


def test_names_are_shown_as_they_are_when_hovered(browser: Any, tmp_path: Path) -> None:
    rows = [runs.row(EVIL, 0, "perplexity", 20.0 + length / 100, length) for length in (64, 128)]
    opened(browser, report.write(runs.folder(tmp_path, rows, encodings=[EVIL], seeds=[0])))
    assert EVIL in hovered(browser, "text-perplexity-last-64-curves", 0)
    assert EVIL in browser.find_element("css selector", ".key").text
