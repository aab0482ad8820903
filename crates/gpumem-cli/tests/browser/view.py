"""Opens a page of `gpumem view` in a headless Chromium and uses it.

view.py PAGE                     checks: open, zoom, choose a moment, pick a block, theme, keyboard only, nothing from the network
view.py PAGE --measure           seconds to open, frames a second while panning
view.py PAGE --screenshots DIR   view-light.png and view-dark.png
view.py PAGE --memory-viz FILE   measures FILE, a page of PyTorch's memory_viz
"""

import argparse
import json
import os
import sys
import time

import browser

OPENED = "document.documentElement?.dataset.openedMs"


def opened(page, path):
    page.open(path)
    return float(page.wait(OPENED, 120))


def text(page, selector):
    return page.run(f"document.querySelector({json.dumps(selector)})?.textContent")


def box(page, selector):
    return page.run(
        f"(({{x, y, width, height}}) => ({{x, y, width, height}}))(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
    )


def settle(page):
    page.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 30))))")


def check(is_true, what):
    if not is_true:
        raise AssertionError(what)


def use(page, path):
    """Uses the page as a person with a mouse does."""
    opened(page, path)
    check(text(page, "#problem") == "", "no problem is shown")
    has_events = page.run("eventCount > 0")
    chart = box(page, "#chart")
    x, y = chart["x"] + chart["width"] * 0.6, chart["y"] + chart["height"] * 0.6
    if not has_events:
        check("No events" in text(page, "#h-moment"), "an empty record says so")
        for key in ("+", "-", "ArrowLeft", "p", "r", "t"):
            page.run("document.getElementById('chart').focus()")
            page.key(key)
        settle(page)
        return
    before = page.run("viewEnd - viewStart")
    page.mouse("mouseWheel", x, y, deltaX=0, deltaY=-400)
    settle(page)
    after = page.run("viewEnd - viewStart")
    check(after < before or page.run("eventCount <= 8"), f"the wheel zooms: {before} {after}")
    page.mouse("mouseMoved", x, y)
    settle(page)
    check(page.run("!document.getElementById('tip').hidden"), "values are shown under the pointer")
    start = page.run("viewStart")
    page.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
    for step in range(1, 6):
        page.mouse("mouseMoved", x + 12 * step, y, button="left", buttons=1)
    page.mouse("mouseReleased", x + 60, y, button="left", clickCount=1)
    settle(page)
    check(page.run("viewStart") < start or start == 0, "dragging pans")
    page.click(x, y)
    settle(page)
    moment = page.run("moment")
    check(f"event {moment + 1:,}" in text(page, "#h-moment"), "a click chooses a moment")
    page.run("document.getElementById('to-peak').click()")
    settle(page)
    row = page.run("document.querySelector('#blocks tbody tr') && document.querySelector('#blocks tbody tr td bdi').textContent")
    check(row, "blocks are live at the peak")
    page.run("document.querySelector('#blocks tbody tr').scrollIntoView({block: 'center'})")
    at = box(page, "#blocks tbody tr")
    page.click(at["x"] + at["width"] / 2, at["y"] + at["height"] / 2)
    settle(page)
    check(text(page, "#block-tag") == row, "a picked block has its tag")
    page.run("document.querySelector('input[name=by][value=stream]').click()")
    settle(page)
    check("stream 0" in text(page, "#legend"), "the colours are of streams")
    page.run("document.querySelector('input[name=by][value=holder]').click()")
    background = "getComputedStyle(document.body).backgroundColor"
    page.theme("light")
    light = page.run(background)
    page.theme("dark")
    dark = page.run(background)
    check(light != dark, "the theme follows the system")
    page.theme("light")
    page.run("document.getElementById('theme').click(); document.getElementById('theme').click()")
    check(page.run(background) == dark, "the button changes the theme")
    page.run("document.getElementById('theme').click()")
    check(page.run("window.harmed") is None, "no text of the record runs")


def use_keys(page, path):
    """Uses the page without a mouse."""
    opened(page, path)
    if page.run("eventCount === 0"):
        return
    page.run("document.activeElement.blur()")
    for _ in range(40):
        page.key("Tab")
        if page.run("document.activeElement.id") == "chart":
            break
    check(page.run("document.activeElement.id") == "chart", "the chart has the focus after some tabs")
    page.key("Home")
    settle(page)
    check(page.run("moment") == 0, "Home is the first event")
    page.key("ArrowRight")
    settle(page)
    check(page.run("moment") > 0 or page.run("eventCount") == 1, "an arrow moves the moment")
    check("live" in page.run("document.getElementById('chart').getAttribute('aria-valuetext')"), "the moment is announced")
    span = page.run("viewEnd - viewStart")
    page.key("+")
    settle(page)
    check(page.run("viewEnd - viewStart") < span or page.run("eventCount <= 8"), "+ zooms")
    page.key("0")
    page.key("p")
    settle(page)
    check(page.run("moment") == page.run("meta.peak"), "P is the peak")
    page.key("/")
    check(page.run("document.activeElement.id") == "search", "/ searches")
    page.key("Tab")
    for _ in range(3):
        if page.run("document.activeElement.closest('#blocks') !== null && document.activeElement.tagName === 'BUTTON'"):
            break
        page.key("Tab")
    check(page.run("document.activeElement.closest('#blocks') !== null"), "the blocks follow the search")
    page.key("Enter")
    settle(page)
    check(text(page, "#block-tag"), "Enter picks a block")


FRAMES = """
new Promise((done) => {
  const times = [];
  const target = %s, box = target.getBoundingClientRect();
  const begin = performance.now();
  const send = (type, x, buttons) => target.dispatchEvent(new %s(type,
    {clientX: x, clientY: box.top + box.height / 2, pointerId: 1, buttons, button: 0, bubbles: true, cancelable: true, view: window}));
  const middle = box.left + box.width / 2;
  %s
  send(%s, middle, 1);
  let last = begin;
  const frame = (now) => {
    times.push(now - last); last = now;
    if (now - begin > 3000) { send(%s, middle, 0); times.shift(); done(times); return; }
    send(%s, middle + Math.sin((now - begin) / 400) * box.width / 4, 1);
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
})"""


def summary(times):
    times.sort()
    return {"frames_a_second": round(1000 * len(times) / sum(times), 1), "slowest_5_percent_ms": round(times[int(len(times) * 0.95)], 1)}


def measure(page, path):
    wall = time.time()
    ms = opened(page, path)
    wall = time.time() - wall
    page.run("HTMLElement.prototype.setPointerCapture = () => {}")
    result = {"events": page.run("eventCount"), "page_mb": round(os.path.getsize(path) / 1e6, 2), "open_s": round(ms / 1000, 2), "open_wall_s": round(wall, 2)}
    page.run("window.paints = []; { const own = paint; paint = () => { const begin = performance.now(); own(); paints.push(performance.now() - begin); }; }")
    for zoom in (0.5, 0.01):
        page.run("paints.length = 0")
        page.run(f"setView(domainEnd * (0.5 - {zoom} / 2), domainEnd * (0.5 + {zoom} / 2))")
        script = FRAMES % ("document.getElementById('chart')", "PointerEvent", "", "'pointerdown'", "'pointerup'", "'pointermove'")
        result[f"pan_{zoom}"] = summary(page.run(script))
        result[f"pan_{zoom}"]["paint_ms"] = page.run("Number(paints.sort((a, b) => a - b)[paints.length >> 1].toFixed(1))")
    result["moment_ms"] = page.run("(() => { const begin = performance.now(); moment = Math.floor(eventCount / 2); showMoment(); return Math.round(performance.now() - begin); })()")
    return result


def measure_memory_viz(page, path, seconds):
    """A page of memory_viz that shows the same events: until its plot is there, and while it is zoomed and panned."""
    begin = time.time()
    page.open(path)
    page.wait("document.querySelector('svg g path, svg polygon') !== null", seconds)
    settle(page)
    result = {"page_mb": round(os.path.getsize(path) / 1e6, 2), "open_s": round(time.time() - begin, 2)}
    target = "[...document.querySelectorAll('svg')].sort((a, b) => b.clientWidth * b.clientHeight - a.clientWidth * a.clientHeight)[0].querySelector('g g g')"
    wheel = "target.dispatchEvent(new WheelEvent('wheel', {clientX: middle, clientY: box.top + box.height / 2, deltaY: -400, bubbles: true, cancelable: true, view: window}));"
    moved = f"({target}).getAttribute('transform')"
    before = page.run(moved)
    result["elements"] = page.run("document.querySelectorAll('*').length")
    result["pan"] = summary(page.run(FRAMES % (target, "MouseEvent", wheel, "'mousedown'", "'mouseup'", "'mousemove'")))
    check(page.run(moved) != before, "the plot moves")
    return result


def screenshots(page, path, folder):
    opened(page, path)
    for theme in ("light", "dark"):
        page.theme(theme)
        page.run("pick(Number(document.querySelector('#blocks tbody tr').dataset.block))")
        settle(page)
        bottom = "Math.ceil(document.getElementById('heap').getBoundingClientRect().bottom + 14)"
        size = page.run(f"({{x: 0, y: 0, width: document.documentElement.clientWidth, height: {bottom}}})")
        page.screenshot(os.path.join(folder, f"view-{theme}.png"), size)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--memory-viz", action="store_true")
    parser.add_argument("--screenshots", metavar="DIR")
    parser.add_argument("--seconds", type=float, default=120)
    arguments = parser.parse_args()
    if not browser.find():
        print("skipped: no Chromium is installed")
        return 77
    page = browser.Browser(width=960 if arguments.screenshots else 1400)
    try:
        for path in arguments.pages:
            if arguments.screenshots:
                screenshots(page, path, arguments.screenshots)
            elif arguments.memory_viz:
                print(json.dumps(measure_memory_viz(page, path, arguments.seconds)))
            elif arguments.measure:
                print(json.dumps(measure(page, path)))
            else:
                use(page, path)
                use_keys(page, path)
                print(f"{os.path.basename(path)}: ok")
            check(not page.problems, f"{path}: {page.problems}")
    finally:
        page.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
