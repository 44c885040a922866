"""The quickstart without its programs: table, arithmetic, folders, and how a part that fails is reported."""

import array
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "deploy"))

import quickstart
from quickstart_lib import corpus, result, table


def site_status(name, **changes):
    return {
        "name": name, "state": "training", "reason": "", "step": 40, "tokens": 20480, "loss": 2.5,
        "tokens_per_s": 3000.0, "utilization": 0.9, "wall_s": 10.0, "stall_s": 0.5, "up_bytes": 1_500_000,
        "down_bytes": 1_400_000, "up_bytes_per_s": 150_000.0, "down_bytes_per_s": 140_000.0, "contributions_sent": 8,
        "contributions_merged": 8, "in_flight": ["2:sending"], **changes
    }


def run_status(**changes):
    return {
        "state": "training", "reason": "", "parameters": 1000, "config": {"run_id": "quickstart"},
        "codec": {"up": "int4", "down": "int4"}, "eval_loss": {"start": 5.5, "latest": None},
        "sites": [site_status("asia"), site_status("eu", step=50, loss=None, in_flight=[])],
        "fragments": [{"id": 0, "version": 3}, {"id": 1, "version": 2}], **changes
    }


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Table(unittest.TestCase):
    def test_sizes_have_three_digits_in_units_of_networks(self):
        self.assertEqual(["0 B", "999 B", "1 kB", "1.5 MB", "2.15 GB"],
                         [table.size(n) for n in (0, 999, 1000, 1_500_000, 2_150_000_000)])

    def test_each_site_has_a_row_with_its_figures(self):
        lines = table.render(run_status(), training_s=10, total_steps=100)
        row = next(line for line in lines if line.startswith("asia"))
        self.assertEqual(["asia", "training", "40", "3000", "2.500", "0.5", "s", "1.5", "MB", "150", "kB/s", "1.4", "MB",
                          "140", "kB/s", "2:sending"], row.split())

    def test_the_table_fits_any_width_from_40_columns_by_dropping_what_matters_least(self):
        wide = run_status(sites=[site_status(f"site{i}", ranks={"ranks": 8}, up_bytes=10**10, down_bytes=10**10) for i in range(3)])
        seen = []
        for columns in (None, 120, 100, 80, 60, 40):
            rows = table.render(wide, 10, 100, columns)[2:]
            self.assertLessEqual(max(map(len, rows)), columns or 200)
            seen.append(rows[0].split())
        self.assertEqual(["site", "state", "step", "tokens/s", "loss", "stall", "up", "down", "in", "flight"], seen[0])
        self.assertEqual(["site", "state", "step", "tokens/s", "loss", "stall", "up", "down"], seen[3])
        self.assertEqual(["site", "step", "tokens/s", "loss", "up"], seen[5])

    def test_without_a_terminal_a_line_has_at_most_80_columns_and_the_sum_over_the_sites(self):
        status = run_status(eval_loss={"start": 5.5, "latest": 2.25})
        self.assertEqual("00:10  round 2  held-out 2.250  6000 tokens/s  3 MB up  00:15 left",
                         table.change_line(status, 10, 100))
        sites = [site_status(f"site{i}", tokens_per_s=1e6) for i in range(64)]
        for reason in ("", "waiting for many sites that have names as long as this one here"):
            self.assertLessEqual(len(table.change_line(run_status(sites=sites, reason=reason), 50_000, 10**7)), 80)

    def test_a_site_of_several_ranks_says_how_many(self):
        sites = [site_status("eu", ranks={"ranks": 2}), site_status("us", ranks={"ranks": 1})]
        lines = table.render(run_status(sites=sites), training_s=10, total_steps=100)
        self.assertEqual([["eu", "×2"], ["us", "training"]], [line.split()[:2] for line in lines[3:]])

    def test_what_is_not_measured_yet_is_a_dash(self):
        lines = table.render(run_status(), training_s=10, total_steps=100)
        self.assertIn("eval loss 5.500 → –", lines[1])
        self.assertTrue(lines[-1].endswith("–"))

    def test_the_time_left_is_that_of_the_slowest_site(self):
        self.assertEqual(15, table.time_left(run_status(), training_s=10, total_steps=100))
        self.assertIsNone(table.time_left(run_status(sites=[site_status("eu", step=0)]), 10, 100))

    def test_sites_that_have_left_do_not_count_as_slow(self):
        gone = site_status("asia", step=7, state="gone")
        self.assertEqual(40, table.least_step(run_status(sites=[gone, site_status("eu")])))
        self.assertEqual(7, table.least_step(run_status(sites=[gone])))

    def test_a_waiting_run_says_why(self):
        waiting = run_status(state="waiting", reason="waiting for 2 more sites", sites=[])
        self.assertIn("waiting (waiting for 2 more sites)", table.render(waiting, 0, 100)[0])

    def test_without_a_terminal_a_line_comes_only_with_a_change(self):
        out = io.StringIO()
        live = table.LiveTable(out, 100)
        live.show(run_status(), 10)
        live.show(run_status(), 11)
        live.show(run_status(fragments=[{"id": 0, "version": 3}, {"id": 1, "version": 3}]), 12)
        self.assertEqual(2, out.getvalue().count("\n"))
        self.assertNotIn("\x1b", out.getvalue())

    def test_on_a_terminal_the_table_replaces_the_one_before(self):
        out = Terminal()
        live = table.LiveTable(out, 100)
        live.show(run_status(), 10)
        lines = out.getvalue().count("\n")
        live.show(run_status(), 11)
        self.assertEqual(1, out.getvalue().count(f"\x1b[{lines}F\x1b[J"))


class Result(unittest.TestCase):
    EVALUATION = {"eval_loss": 1.9, "bigram_loss": 2.4, "bits_per_byte": 2.7, "sample": "a\x1bb"}

    def test_the_figures_are_sums_over_the_sites(self):
        figures = result.summarize(run_status(), self.EVALUATION, training_s=30, export_dir="/x")
        self.assertEqual((50, 40960, 3_000_000, 2_800_000),
                         tuple(figures[field] for field in ("steps", "tokens", "bytes_up", "bytes_down")))
        self.assertEqual(2 * 4 * 1000 * (40 + 50), figures["bytes_float32_every_step"])
        self.assertAlmostEqual(720_000 / 5_800_000, figures["reduction"])
        self.assertAlmostEqual(1.0 / 20.0, figures["stall_share"])
        self.assertEqual((5.5, 1.9, 2.4, 0.5), tuple(
            figures[field] for field in ("eval_loss_start", "eval_loss_end", "bigram_loss", "minutes")))

    def test_it_has_the_fields_that_scripts_rely_on(self):
        figures = result.summarize(run_status(), self.EVALUATION, 30, "/x")
        self.assertEqual({"eval_loss_start", "eval_loss_end", "bigram_loss", "minutes", "steps", "tokens", "bytes_up",
                          "bytes_down", "bytes_float32_every_step", "reduction", "stall_share", "export_dir", "sample",
                          "config", "sites"}, set(figures))
        self.assertEqual(["asia", "eu"], [site["name"] for site in figures["sites"]])
        self.assertEqual(1_500_000, figures["sites"][0]["bytes_up"])

    def test_the_summary_compares_with_the_bigram_table(self):
        lines = "\n".join(result.summary_lines(result.summarize(run_status(), self.EVALUATION, 30, "/x")))
        self.assertIn("5.500 → 1.900", lines)
        self.assertIn("0.500 below a bigram table's 2.400", lines)
        self.assertIn("a·b", lines)

    def test_the_summary_says_what_the_reduction_is_made_of(self):
        config = {"sync": {"sync_every": 4}, "codec": {"up": "int4", "down": "int4"}}
        figures = result.summarize(run_status(config=config), self.EVALUATION, 30, "/x")
        figures["reduction"] = 31.0
        lines = result.summary_lines(figures)
        self.assertIn("                    4 times by syncing every 4 steps, 7.8 times by int4", lines)

    def test_what_a_script_does_not_say_is_null_and_a_dash(self):
        silent = run_status(sites=[site_status("eu", tokens=0, tokens_per_s=0, loss=None)],
                            config={"model": {"kind": "external"}}, eval_loss={"start": None, "latest": None})
        figures = result.summarize(silent, {**self.EVALUATION, "eval_loss_start": 5.6}, 30, "/x")
        self.assertEqual((None, None), (figures["tokens"], figures["sites"][0]["tokens"]))
        self.assertEqual(5.6, figures["eval_loss_start"])
        lines = "\n".join(result.summary_lines(figures))
        self.assertIn("1 sites, 40 steps each, in 30 s", lines)
        self.assertNotIn("LlamaForCausalLM", lines)
        row = table.render(silent, training_s=10, total_steps=100)[-1]
        self.assertEqual(["eu", "training", "40", "–", "–"], row.split()[:5])

    def test_a_model_of_tokens_has_neither_bigram_nor_sample(self):
        evaluation = {"eval_loss": 1.9, "bigram_loss": None, "bits_per_byte": None, "sample": None}
        lines = "\n".join(result.summary_lines(result.summarize(run_status(), evaluation, 30, "/x")))
        self.assertNotIn("bigram", lines)


class Folders(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def take(self, path):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            lock = quickstart.take_out_folder(path)
        self.addCleanup(lock.close)
        return said.getvalue()

    def test_a_folder_that_is_not_a_quickstarts_is_refused_and_untouched(self):
        (self.folder / "run.yaml").write_text("mine")
        with self.assertRaisesRegex(quickstart.UsageError, "not a quickstart's"):
            self.take(self.folder)
        self.assertEqual(["run.yaml"], [path.name for path in self.folder.iterdir()])

    def test_each_run_has_a_folder_of_its_own_and_the_links_lead_to_the_newest(self):
        out = self.folder / "out"
        self.take(out)
        runs = []
        for text in ("first", "second"):  # within one second, as a rule
            runs.append(quickstart.new_run_folder(out))
            (runs[-1] / "result.json").write_text(text)
            self.assertEqual(runs[-1], (out / "latest").resolve())
            self.assertEqual(text, (out / "result.json").read_text())
        self.assertEqual("first", (runs[0] / "result.json").read_text())
        self.assertEqual("latest/result.json", os.readlink(out / "result.json"))
        self.assertEqual(runs[1].name, os.readlink(out / "latest"))  # relative: the folder may be moved
        self.assertEqual({"quickstart.lock", "latest", "result.json", "report.html", *(run.name for run in runs)},
                         {path.name for path in out.iterdir()})

    def test_what_an_earlier_version_left_is_refused_and_untouched(self):
        (self.folder / "export").mkdir()
        for name in ("quickstart.lock", "result.json", "eu.log", "export/model.safetensors"):
            (self.folder / name).write_text("precious")
        with self.assertRaisesRegex(quickstart.UsageError, "expected result.json to be a link"):
            self.take(self.folder)
        for name in ("result.json", "eu.log", "export/model.safetensors"):
            self.assertEqual("precious", (self.folder / name).read_text())

    def test_a_second_quickstart_in_the_same_folder_is_refused(self):
        self.take(self.folder / "out")
        with self.assertRaisesRegex(quickstart.UsageError, "another quickstart"):
            self.take(self.folder / "out")

    def test_empty_absent_and_unreadable_data_are_refused(self):
        (self.folder / "empty.txt").write_text("")
        os.mkfifo(self.folder / "pipe")
        (self.folder / "shards").mkdir()
        (self.folder / "no_shards").mkdir()
        (self.folder / "shards" / "a.bin").write_text("")
        for name, message in (("empty.txt", "is empty"), ("absent.txt", "no such file"), ("pipe", "got a pipe"),
                              ("no_shards", "folder without any"), ("shards", "a.bin: is empty")):
            with self.assertRaisesRegex(corpus.CorpusError, message):
                corpus.check_data(self.folder / name)

    def test_text_that_is_no_utf8_is_refused_before_anything_is_built_and_the_dictionary_is_converted(self):
        for name, content in (("latin1.txt", "caf\u00e9\n".encode("latin1") * 9), ("a.gz", b"\x1f\x8b\x08\0text")):
            (self.folder / name).write_bytes(content)
            with self.assertRaisesRegex(corpus.CorpusError, f"{name}: expected text in UTF-8, got byte 0x(e9|8b): iconv"):
                corpus.check_data(self.folder / name)
        (self.folder / "utf8.txt").write_text("caf\u00e9 \u65e5\u672c\n" * 9)
        self.assertEqual(self.folder / "utf8.txt", corpus.check_data(self.folder / "utf8.txt"))
        self.assertEqual("don\u2019t caf\u00e9".encode(), corpus.in_utf8(b"don\x92t caf\xe9"))
        self.assertEqual("caf\u00e9".encode(), corpus.in_utf8("caf\u00e9".encode()))

    def test_a_paragraph_of_the_dictionary_becomes_a_sentence(self):
        self.assertEqual("Coagulate, v. t. To curdle; as, rennet coagulates milk.", corpus.plain(
            'Coagulate \\Co*ag"u*late\\ (k"t), v. t. [imp. & p. p. {Coagulated}; p.\n   pr. [Obs.] {Coagulating}.]\n'
            '   To curdle; as, rennet coagulates\n   milk. --B. Jonson.\n   [1913 Webster]\n'))

    def test_hidden_files_are_no_data_and_arrays_of_numpy_say_what_their_tokens_are(self):
        (self.folder / "data").mkdir()
        (self.folder / "data" / "._a.bin").write_bytes(b"\xff" * 8)
        header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }".ljust(117) + b"\n"
        (self.folder / "data" / "a.npy").write_bytes(b"\x93NUMPY\1\0\x76\0" + header +
                                                     array.array("q", [3, 70_000]).tobytes())
        self.assertEqual(self.folder / "data", corpus.check_data(self.folder / "data"))
        self.assertEqual(70_001, corpus.vocab_size(self.folder / "data"))

    def test_the_vocabulary_holds_the_largest_token(self):
        text = self.folder / "text.txt"
        text.write_bytes(b"\xff\xff\xff\xff")
        plain = self.folder / "plain.bin"
        plain.write_bytes(array.array("H", [1, 5000, 2]).tobytes())
        header = array.array("i", [corpus.LLMC_MAGIC, 1, 2] + [-1] * 253)
        with_header = self.folder / "with_header.bin"
        with_header.write_bytes(header.tobytes() + array.array("H", [7, 300]).tobytes())
        self.assertEqual([256, 5001, 301], [corpus.vocab_size(path) for path in (text, plain, with_header)])
        self.assertEqual(5001, corpus.vocab_size(self.folder))
        wide = array.array("I", [corpus.LLMC_WIDE_MAGIC, 7, 2] + [0] * 253 + [5, 70000])
        (self.folder / "wide.bin").write_bytes(wide.tobytes())
        self.assertEqual(70001, corpus.vocab_size(self.folder))

    def test_a_folder_of_texts_or_of_json_lines_is_taken(self):
        for name in ("a.jsonl", "a.txt"):
            (self.folder / name).write_text("some text")
            self.assertEqual(self.folder, corpus.check_data(self.folder))
            self.assertEqual(256, corpus.vocab_size(self.folder))


class Program(unittest.TestCase):
    """The script as a whole, with arguments that end it before it installs, builds or starts anything."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def run_script(self, *arguments):
        script = pathlib.Path(quickstart.__file__).with_suffix("")
        return subprocess.run([script, f"--out={self.folder}", *arguments], capture_output=True, text=True, timeout=60)

    def contents(self):
        return {str(path.relative_to(self.folder)): path.read_text() for path in self.folder.rglob("*")
                if path.is_file() and path.name != "quickstart.lock"}

    def test_a_mistake_in_the_input_costs_no_model(self):
        # As a run leaves them, today's and an earlier version's.
        for name in ("2026-01-31-093000/export/model.safetensors", "export/model.safetensors", "eu.log", "run.yaml"):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text("precious")
        (self.folder / "quickstart.lock").write_text("")
        before = self.contents()
        for arguments, expected in ((["--data=TYPO"], "TYPO: no such file"), (["--minutes=-1"], "--minutes=-1.0: expected"),
                                    (["--sites=0"], "--sites=0: expected 1 to 64"), (["--datum=x"], "unrecognized"),
                                    (["--torch=TYPO"], "--torch=TYPO: expected a Python interpreter, found no such")):
            done = self.run_script(*arguments)
            self.assertEqual(2, done.returncode, done.stderr)
            self.assertIn(expected, done.stderr)
            self.assertEqual("", done.stdout)  # nothing was installed or built
            self.assertEqual(before, self.contents())

    def test_help_that_finds_no_room_is_an_error(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            ended = subprocess.run([sys.executable, quickstart.__file__, "--help"], stdout=full, stderr=subprocess.PIPE,
                                   text=True, check=False)
        self.assertEqual(ended.returncode, 1)
        self.assertEqual(ended.stderr, "quickstart: [Errno 28] No space left on device\n")


class Stages(unittest.TestCase):
    """quickstart() with stages that only note what they were given."""

    def setUp(self):
        self.out = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "out"
        self.text = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "text.txt"
        self.text.write_text("some text")
        for name, stand_in in (("prepare", lambda data, _: data), ("calibrate", self.calibrate), ("train", self.train)):
            self.enterContext(unittest.mock.patch.object(quickstart, name, stand_in))

    def calibrate(self, out, *_):
        (out / "calibration").mkdir()
        return 10.0, 20

    def train(self, out, *_):
        (out / "export").mkdir()
        (out / "export" / "model.safetensors").write_text(out.name)
        return result.summarize(run_status(), Result.EVALUATION, training_s=30, export_dir=out / "export")

    def run_quickstart(self):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            quickstart.quickstart(quickstart.parse_arguments([f"--out={self.out}", f"--data={self.text}"]))
        return said.getvalue()

    def test_a_second_run_leaves_the_first_ones_model_and_figures(self):
        self.run_quickstart()
        first = (self.out / "latest").resolve()
        said = self.run_quickstart()
        second = (self.out / "latest").resolve()
        for name in ("result.json", "report.html"):
            self.assertIn(str(second / name), said)
        self.assertNotEqual(first, second)
        for run in (first, second):
            self.assertEqual(run.name, (run / "export" / "model.safetensors").read_text())
            self.assertEqual(str(run / "export"), json.loads((run / "result.json").read_text())["export_dir"])
        self.assertEqual((second / "result.json").read_text(), (self.out / "result.json").read_text())

    def test_it_prints_the_address_of_the_page_that_people_look_at(self):
        line = quickstart.status_line({"grpc": "127.0.0.1:1", "http": "127.0.0.1:2"}, self.out)
        self.assertIn("http://127.0.0.1:2/\n", line)


class Steps(unittest.TestCase):
    def test_the_rate_is_taken_between_changes(self):
        self.assertEqual(4.0, quickstart.steps_per_second([(10.0, 3), (10.2, 4), (12.0, 11)]))

    def test_the_steps_fill_the_minutes_and_are_never_too_few_for_a_round(self):
        self.assertEqual(560, quickstart.steps_that_fit(rate=10, minutes=1, sync_every=20))
        self.assertEqual(60, quickstart.steps_that_fit(rate=0.1, minutes=1, sync_every=20))

    def test_sites_have_the_names_of_places_first(self):
        self.assertEqual(["eu", "us"], quickstart.site_names(2))
        self.assertEqual(["eu", "us", "asia", "site4", "site5"], quickstart.site_names(5))


if __name__ == "__main__":
    unittest.main()
