"""The status page in headless Chromium: its figures are those of /status, it asks no other server, names of sites
stay text, and it goes on when streams or the coordinator fail. Ends with 77 where there is no Chromium.
"""

import json
import os
import pathlib
import sys
import unittest
import urllib.request

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent / "e2e"))

import browser
import feed_server
import feeds
import rules
from harness import BIN_DIR, EndToEndTest, synthetic

SKIPPED = 77
PAGE = BIN_DIR / "server" / "status" / "page" / "page.cc.html"
FIGURES = """[...document.querySelectorAll('[data-field]')].map((node) =>
    [node.dataset.field, node.dataset.kind, JSON.parse(node.dataset.raw), node.textContent])"""
LINK = "document.getElementById('link').dataset.link"
SHOWN_AT = "Number(document.body.dataset.unixMs)"

# Takes the place of EventSource: the test says what comes.
PLAYED_STREAM = """window.EventSource = class {
  constructor() { this.handlers = {}; window.stream = this; }
  addEventListener(name, handler) { this.handlers[name] = handler; }
  play(name, value) { this.handlers[name]({data: JSON.stringify(value)}); }
  close() {}
};"""


def sites_of(status):
    return {site["name"]: site for site in status["sites"]}


def total(values):
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None


def computed(path, status):
    """The figures that the page computes itself, from the same status."""
    present = [site for site in status["sites"] if site["state"] != "gone"]
    mean = lambda values: total(values) / len([v for v in values if v is not None]) if total(values) is not None else None
    stalls = [site["stall_s"] / site["wall_s"] for site in present if site["wall_s"] > 0]
    sent = total([site["up_bytes"] + site["down_bytes"] for site in status["sites"]])
    if len(path) == 1:
        return {
            "present": len(present), "rounds": total([fragment["version"] for fragment in status["fragments"]]), "sent": sent,
            "up": total([site["up_bytes_per_s"] for site in present]),
            "down": total([site["down_bytes_per_s"] for site in present]),
            "reduction": status["float32_every_step_bytes"] / sent if sent else None,
            "utilization": mean([site["utilization"] for site in present]), "stall": mean(stalls),
        }[path[0]]
    site = sites_of(status)[path[0]]
    float32 = 8 * status["parameters"] * site["step"]
    moved = site["up_bytes"] + site["down_bytes"]
    delays = [fragment["fragment_sync_delay"] for fragment in site["fragments"]]
    return {"float32": float32, "saved": float32 / moved if moved else None, "delay": max(delays, default=None)}[path[1]]


def expected(field, status):
    first, *rest = field.split("/")
    if first == "computed":
        return computed(rest, status)
    if first == "sites":
        return sites_of(status)[rest[0]].get(rest[1])
    if first == "fragments":
        return next(fragment for fragment in status["fragments"] if str(fragment["id"]) == rest[0])[rest[1]]
    value = status
    for name in (first, *rest):
        if value is None:
            return None  # of what is null, like eval_loss where each site has its own, the page shows nothing
        value = value[name]
    return value


class PageTest(EndToEndTest):
    def chromium(self, **options):
        chromium = browser.Browser(**options)
        self.addCleanup(chromium.close)
        return chromium

    def feed(self, scenario="healthy", **options):
        server = feed_server.FeedServer(PAGE.read_text(encoding="utf-8"), scenario, **options)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return server

    def opened(self, url, **options):
        chromium = self.chromium(**options)
        chromium.open(url)
        chromium.eventually("document.querySelectorAll('#tiles .tile').length", "the page shows a status")
        return chromium

    def assert_sound(self, chromium, base):
        """Nothing failed in its script, and it asked only the server that it came from."""
        self.assertEqual([], chromium.complaints())
        self.assertEqual([], [url for url in chromium.requests() if not url.startswith(base)])


class LiveRunTest(PageTest):
    def start_run(self):
        sites = {"asia": 0.5, "eu": 0.3, "us": 0.2}
        run = self.new_run(synthetic(sites, [[30_000], [20_000]], model={"step_ms": 20, "gradient": {"kind": "noise"}},
                                     sync={"sync_every": 10, "num_fragments": 2, "fragment_sync_delay": 3}))
        run.start_coordinator()
        run.start_workers(*sites)
        run.await_rounds(3)
        return run

    def statuses(self, chromium):
        """{unix_ms: status} of the stream's events that the browser has received."""
        chromium.evaluate("0")
        received = [event["params"] for event in chromium.events
                    if event.get("method") == "Network.eventSourceMessageReceived"]
        statuses = [json.loads(one["data"]) for one in received if one["eventName"] == "status"]
        return {status["unix_ms"]: status for status in statuses}

    def test_figures_are_those_of_status_and_the_page_outlives_the_coordinator(self):
        run = self.start_run()
        base = f"http://{run.http}/"
        chromium = self.opened(base)
        chromium.eventually(f"{LINK} === 'live'")
        chromium.eventually("document.querySelectorAll('#timeline [data-round]').length > 3", "rounds on the time axis")
        for _ in range(3):
            before = chromium.evaluate(SHOWN_AT)
            chromium.eventually(f"{SHOWN_AT} > {before}", "the next status")
            self.check_figures(chromium)

        run.coordinator.kill()
        chromium.eventually(f"{LINK} === 'lost'")
        self.assertIn("No connection to the coordinator since",
                      chromium.evaluate("document.getElementById('lost').innerText"))
        run.start_coordinator(f"--copy_to={run.folder / 'copies'}", "--copy_hook=true")
        chromium.eventually(f"{LINK} === 'live' && document.getElementById('lost').hidden")
        chromium.eventually("document.getElementById('about').textContent.includes('epoch 2')")
        chromium.eventually("document.getElementById('about').textContent.includes(', its hook ended with 0 in ')")
        self.assert_sound(chromium, base)
        run.stop_all()

    def check_figures(self, chromium):
        shown_at, figures = chromium.evaluate(f"[{SHOWN_AT}, {FIGURES}]")
        status = self.statuses(chromium)[shown_at]
        self.assertEqual({"asia", "eu", "us"}, set(sites_of(status)))
        for field, kind, raw, text in figures:
            value = expected(field, status)
            if field.startswith("computed/") and value is not None:
                self.assertAlmostEqual(value, raw, delta=1e-9 * abs(value), msg=field)  # sums in another order
            else:
                self.assertEqual(value, raw, field)
            self.assertEqual(rules.text(kind, raw), text, f"{field} = {raw}")
        fields = {field for field, *_ in figures}
        for site in sites_of(status):
            for name in ("step", "tokens_per_s", "utilization", "stall_s", "slack_s", "residual_norm", "staleness",
                         *(f"{way}_{figure}" for way in ("up", "down")
                           for figure in ("bytes", "bytes_per_s", "mean_bytes_per_s", "peak_bytes_per_s"))):
                self.assertIn(f"sites/{site}/{name}", fields)
        for name in ("contributing_sites", "min_quorum", "float32_every_step_bytes", "eval_loss/latest"):
            self.assertIn(name, fields)

    def test_what_the_page_says_of_a_paused_run_is_the_coordinators_reason(self):
        run = self.start_run()
        chromium = self.opened(f"http://{run.http}/", width=390, height=844)
        self.assertTrue(chromium.evaluate("document.getElementById('settings').hidden"), "nothing was changed")
        run.control("set", "outer.lr=0.5", "run.steps=100000")
        chromium.eventually("!document.getElementById('settings').hidden")
        said = chromium.evaluate("document.getElementById('settings').textContent")
        self.assertIn("1 change of the settings, the last from step", said)
        self.assertIn("run.steps: 0 → 100000", said)
        chromium.eventually("/step \\d+ of 100.000/.test(document.getElementById('tiles').textContent)")
        run.control("pause")
        chromium.eventually("document.getElementById('verdict-word').textContent === 'Paused'")
        self.assertIn("paused by an operator", chromium.evaluate("document.getElementById('sentence').textContent"))
        self.assertIn("causewayctl resume", chromium.evaluate("document.getElementById('alarms').textContent"))
        self.assertEqual(390, chromium.evaluate("document.documentElement.scrollWidth"), "nothing is wider than a phone")
        with urllib.request.urlopen(f"http://{run.http}/status") as answer:
            now = json.load(answer)
        figures = {field: raw for field, _, raw, _ in chromium.evaluate(FIGURES)}
        for fragment in now["fragments"]:
            self.assertEqual(fragment["version"], figures[f"fragments/{fragment['id']}/version"])
        run.control("resume")
        chromium.eventually("document.getElementById('health').dataset.level === 'good'")
        run.stop_all()


class FeedTest(PageTest):
    def test_what_a_site_calls_itself_stays_text(self):
        server = self.feed("markup")
        chromium = self.opened(server.url())
        chromium.eventually("document.querySelectorAll('#timeline [data-round]').length > 3")
        chromium.evaluate("document.querySelector('#timeline [data-round]')"
                          ".dispatchEvent(new MouseEvent('click', {bubbles: true}))")
        chromium.eventually("document.querySelectorAll('#round-table tbody tr').length")
        self.assertEqual(0, chromium.evaluate("document.querySelectorAll('img, [onerror]').length"))
        self.assertNotEqual("injected", chromium.evaluate("document.title"))
        for place in ("presence-table", "round-table", "sentence", "alarms", "codec", "losses"):
            self.assertIn(feeds.MARKUP, chromium.evaluate(f"document.getElementById('{place}').textContent"), place)
        self.assert_sound(chromium, server.url())

    def test_a_site_that_is_gone_is_named_with_what_to_do(self):
        server = self.feed("dead")
        chromium = self.opened(server.url())
        self.assertEqual("Training without site us",
                         chromium.evaluate("document.getElementById('verdict-word').textContent"))
        said = chromium.evaluate("document.getElementById('alarms').textContent")
        self.assertIn("us is gone: not heard of for 10000 ms (lease_ms)", said)
        self.assertIn("start the worker again", said)
        self.assertNotIn("us", chromium.evaluate("document.getElementById('waits').textContent"), "it is said once")
        self.assert_sound(chromium, server.url())

    def test_sites_that_have_done_all_steps_are_finished_and_nothing_is_red(self):
        server = self.feed("finished")
        chromium = self.opened(server.url())
        self.assertEqual("Done", chromium.evaluate("document.getElementById('verdict-word').textContent"))
        self.assertRegex(chromium.evaluate("document.getElementById('tiles').innerText"), r"3 of 3\s+finished")
        table = chromium.evaluate("document.getElementById('presence-table').innerText")
        self.assertEqual((3, 0), (table.count("finished"), table.count("gone")), table)
        self.assertEqual(0, chromium.evaluate("document.querySelectorAll('#presence-table [data-yes=false]').length"))
        self.assert_sound(chromium, server.url())

    def test_a_run_that_waits_shows_how_a_site_joins_and_nothing_that_it_does_not_have(self):
        server = self.feed("before")
        chromium = self.opened(server.url())
        self.assertRegex(chromium.evaluate("document.getElementById('join').innerText"),
                         r"The next site joins with:\s+causeway-worker --coordinator=127\.0\.0\.1:7077 --site=NAME --data=FILE")
        self.assertRegex(chromium.evaluate("document.getElementById('tiles').innerText"), r"^Sites\s+0 of 3\s+training starts")
        self.assertEqual(0, chromium.evaluate("document.getElementById('losses').getClientRects().length"))
        self.assert_sound(chromium, server.url())

    def test_time_left_and_the_loss_stand_under_the_headline(self):
        server = self.feed("healthy")
        chromium = self.opened(server.url())
        self.assertRegex(chromium.evaluate("document.getElementById('progress').innerText"),
                         r"^step 9\u202f640 of 30\u202f000, about [^·]+ left · held-out loss 5\.546 → 2\.\d+$")
        self.assert_sound(chromium, server.url())

    def test_without_a_stream_it_polls_and_without_a_server_it_says_since_when(self):
        server = self.feed(streams=False)
        chromium = self.opened(server.url())
        chromium.eventually(f"{LINK} === 'polling'")
        shown = chromium.evaluate(SHOWN_AT)
        chromium.eventually(f"{SHOWN_AT} > {shown}", "a second poll, before the stream is tried again", seconds=10)
        chromium.eventually("document.querySelectorAll('#timeline [data-round]').length > 3")
        self.assertEqual({"/", "/events", "/status", "/timeline"}, set(server.requests))

        server.shutdown()
        server.server_close()
        chromium.eventually("document.getElementById('lost').innerText.includes('since')")
        again = self.feed(port=server.server_address[1])
        chromium.eventually(f"{LINK} === 'live'", "the stream of the server that came back")
        self.assertTrue(chromium.evaluate("document.getElementById('lost').hidden"))
        again.streams = False  # which cuts it
        chromium.eventually(f"{LINK} === 'polling'")

    def test_what_is_not_there_yet_is_a_dash(self):
        for scenario in ("old", "before", "paused"):
            with self.subTest(scenario):
                server = self.feed(scenario)
                chromium = self.opened(server.url())
                chromium.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
                text = chromium.evaluate("document.body.innerText")
                for word in ("NaN", "undefined", "null", "Infinity", "Invalid", "[object"):
                    self.assertNotIn(word, text)
                self.assertIn("–", text)
                self.assert_sound(chromium, server.url())

    def test_half_an_hour_of_statuses_leaves_no_more_behind_than_ten_minutes(self):
        server = self.feed()
        chromium = self.chromium()
        chromium.call("Page.addScriptToEvaluateOnNewDocument", source=PLAYED_STREAM)
        chromium.open(server.url())
        chromium.eventually("Boolean(window.stream && window.stream.handlers.status)")

        def play(statuses):
            """That many of both events, of a run whose rounds go on; elements and bytes that are there afterwards."""
            now = 1_800_000_000_000
            chromium.evaluate(f"window.status_ = {json.dumps(feeds.healthy(now))}; "
                              f"window.timeline_ = {json.dumps(feeds.timeline('healthy', now))}; 0")
            for _ in range(statuses // 60):
                chromium.evaluate("""for (let i = 0; i < 60; ++i) {
                  status_.unix_ms += 1000;
                  for (const site of status_.sites) site.up_bytes_per_s = 1e6 * (1 + i % 7);
                  stream.play('status', status_);
                  if (i % 10 === 0) stream.play('timeline', timeline_);
                }""")
            chromium.call("HeapProfiler.collectGarbage")
            elements = chromium.evaluate("document.getElementsByTagName('*').length")
            return elements, chromium.call("Runtime.getHeapUsage")["usedSize"]

        elements, used = play(600)
        more_elements, more_used = play(1200)
        self.assertEqual(elements, more_elements)
        self.assertLess(more_used, used + 100_000)
        self.assertEqual([], chromium.complaints())

    def test_keyboard_reads_the_rounds(self):
        server = self.feed()
        chromium = self.opened(server.url())
        chromium.eventually("document.querySelectorAll('#timeline [data-round]').length > 3")
        chromium.evaluate("document.querySelector('#timeline svg').focus()")
        for key in ("ArrowLeft", "ArrowLeft", "ArrowUp", "Enter"):
            chromium.call("Input.dispatchKeyEvent", type="keyDown", key=key)
            chromium.call("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.assertEqual(3, chromium.eventually("document.querySelectorAll('#round-table tbody tr').length"))
        self.assertRegex(chromium.evaluate("document.querySelector('.details h3').textContent"),
                         r"^Fragment \d, version \d+")
        chromium.call("Input.dispatchKeyEvent", type="keyDown", key="Escape")
        chromium.eventually("document.querySelector('.details').hidden")

    def test_text_stands_out_from_its_ground_in_both_themes(self):
        for dark in (False, True):
            server = self.feed("alone")
            chromium = self.opened(server.url(), dark=dark)
            chromium.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
            faint = chromium.evaluate((FOLDER / "contrast.js").read_text())
            self.assertEqual([], faint, "dark" if dark else "light")


if __name__ == "__main__":
    os.chdir(FOLDER)
    if browser.find() is None:
        print("skipped: the browser test of the status page needs Chromium (deploy/install_packages deploy/packages_ci.txt)")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
