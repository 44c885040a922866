"""Pictures of the page in the situations of feeds.py, or of a coordinator that runs.

    screenshots.py PAGE.html OUT [SCENARIO …]      each light and dark, 1280 and 390 wide
    screenshots.py http://127.0.0.1:7078/ OUT
"""

import pathlib
import sys
import time

import browser
import feed_server


def pictures(url, out, name, looks=((1280, False), (1280, True), (390, False), (390, True))):
    for width, dark in looks:
        with browser.Browser(width, 900 if width > 600 else 844, dark) as chromium:
            chromium.open(url)
            chromium.eventually("document.querySelectorAll('#tiles .tile').length")
            time.sleep(3)  # a second timeline, some rates
            chromium.screenshot(out / f"{name}-{width}-{'dark' if dark else 'light'}.png")
            for complaint in chromium.complaints():
                print(name, width, complaint, file=sys.stderr)


def main(source, out, *scenarios):
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    if source.startswith("http"):
        return pictures(source, out, "run")
    page = pathlib.Path(source).read_text(encoding="utf-8")
    for scenario in scenarios or ("healthy", "dead", "paused"):
        pictures(feed_server.FeedServer(page, scenario).url(), out, scenario)


if __name__ == "__main__":
    main(*sys.argv[1:])
