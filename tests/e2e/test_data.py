"""The data of sites: each on its own data, or all on the same; who is refused, and that a site reads all of its file.

The proof of what was read is in the parameters: with an untied head, no weight decay and float32 on both legs, the
embedding of a token that no site has read as an input keeps its initial bits.
"""

import bz2
import contextlib
import gzip
import io
import json
import lzma
import os
import pickle
import sqlite3
import tarfile
import unittest
import zipfile

import numpy

from harness import BAD_INPUT, DONE, REFUSED, EndToEndTest, eventually, merged

VOCABULARY = 400
EU, US = (0, 180), (200, 380)  # the tokens of each site's file, each of them there once
DATA_FIELD = 13  # of RunConfig

CONFIG = {
    "run_id": "e2e",
    "run": {"steps": 400},
    "model": {"kind": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
              "num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": VOCABULARY,
              "max_position_embeddings": 64, "tie_word_embeddings": False},
    "inner": {"optimizer": "sgd", "lr": 0.01, "warmup_steps": 0, "schedule": "constant", "weight_decay": 0, "clip": 0,
              "batch_size": 8, "sequence_length": 7},
    "sync": {"sync_every": 100, "num_fragments": 1, "fragment_sync_delay": 0, "fragment_update_alpha": 0},
    "outer": {"optimizer": "sgd", "lr": 1},
    "codec": {"up": "float32", "down": "float32", "feedback_up": 0, "feedback_down": 0},
    "membership": {"min_sites": 2},
    "eval": {"every_rounds": 1, "held_out": 0, "batches": 1},
    "checkpoint": {"every_rounds": 0},
}


def varint(data, at):
    """A number of protobuf, and where the next thing begins."""
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return value, at


class SitesOnDataTest(EndToEndTest):
    def run_of(self, **changes):
        run = self.new_run(merged(CONFIG, changes))
        run.start_coordinator()
        return run

    def tokens(self, name, values):
        path = self.folder / f"{name}.bin"
        numpy.array(values, "<u2").tofile(path)
        return path

    def start(self, run, **files):
        for site, file in files.items():
            run.start_worker(site, f"--data={file}")


class DataTest(SitesOnDataTest):
    def moved(self, files, **data):
        run = self.run_of(data=data)
        self.start(run, **files)
        run.await_done()
        trained = run.export()["model.embed_tokens.weight"]
        run.stop_coordinator()
        self.assertEqual(trained.shape, (VOCABULARY, 8))
        begin = self.initial_embedding(files, data)
        return set(numpy.flatnonzero((trained != begin).any(axis=1)))

    def initial_embedding(self, files, data):
        """Where the run begins: the parameters of a site that took one step with a rate of nothing."""
        run = self.run_of(run={"steps": 1}, inner={"lr": 1e-30}, sync={"sync_every": 1}, data=data)
        self.start(run, **files)
        run.await_done()
        begin = run.export()["model.embed_tokens.weight"]
        run.stop_coordinator()
        return begin

    def test_in_mode_own_each_site_reads_all_of_its_own_file(self):
        files = {"eu": self.tokens("eu", range(*EU)), "us": self.tokens("us", range(*US))}
        # The last token of a file is a target alone.
        self.assertEqual(self.moved(files, mode="own"), {*range(EU[0], EU[1] - 1), *range(US[0], US[1] - 1)})

    def test_shards_of_uint32_tokens_train(self):
        tokens = numpy.arange(60_000, 64_096, dtype="<u4") * 2 % 70_000
        header = numpy.zeros(256, "<i4")
        header[:3] = 20240801, 7, len(tokens)
        shard, raw = self.folder / "llama3.bin", self.folder / "raw.bin"
        shard.write_bytes(header.tobytes() + tokens.tobytes())
        tokens[:2048].tofile(raw)
        run = self.run_of(model={"vocab_size": 70_000}, run={"steps": 2}, sync={"sync_every": 1},
                          data={"mode": "own", "token_bytes": 4})
        self.start(run, eu=shard, us=raw)
        run.await_done()
        self.assertEqual({site["name"]: site["data"]["tokens"] for site in run.status()["sites"]},
                         {"eu": 4096, "us": 2048})

    def test_own_is_what_a_new_run_does_that_does_not_say(self):
        files = {"eu": self.tokens("eu", range(*EU)), "us": self.tokens("us", range(*US))}
        run = self.run_of()
        self.start(run, **files)
        run.await_done()
        self.assertEqual(run.status()["config"]["data"]["mode"], "own")
        self.assertEqual({site["name"]: site["data"]["tokens"] for site in run.status()["sites"]},
                         {"eu": 180, "us": 180})

    def test_in_mode_shared_each_site_reads_a_part_and_all_of_them_the_file(self):
        file = self.tokens("all", range(*EU))
        read = self.moved({"eu": file, "us": file}, mode="shared")
        self.assertLessEqual(read, set(range(*EU)))
        self.assertGreater(len(read), 140, "all but the ends of segments")

    def test_a_stored_run_without_the_key_goes_on_as_shared_with_its_bits(self):
        file = self.tokens("all", range(*EU))
        exported = []
        for stored_by_a_program_of_before in (False, True):
            run = self.new_run(merged(CONFIG, {"run": {"steps": 200}, "data": {"mode": "shared"}}))
            run.start_coordinator()
            if stored_by_a_program_of_before:
                run.stop_coordinator()
                self.forget_the_data_section(run)
                run.config_path.write_text(json.dumps(merged(CONFIG, {"run": {"steps": 200}})))
                run.start_coordinator()
            self.assertEqual(run.status()["config"]["data"]["mode"], "shared")
            self.start(run, eu=file, us=file)
            run.await_done()
            exported.append(run.export())
            run.stop_coordinator()
        self.assert_same_bits(exported[0], exported[1], "the run of before against one that says shared")

    def forget_the_data_section(self, run):
        """Takes `data`, field 13, out of the stored config, as if it had never been written."""
        with contextlib.closing(sqlite3.connect(run.state_dir / "journal.sqlite")) as journal:
            (stored,) = journal.execute("SELECT value FROM meta WHERE key = 'run_config'").fetchone()
            kept, at = b"", 0
            while at < len(stored):
                tag, begin = varint(stored, at)
                value, end = varint(stored, begin)
                end += value if tag & 7 == 2 else 0  # all other fields of a config are numbers
                kept += stored[at:end] if tag >> 3 != DATA_FIELD else b""
                at = end
            self.assertLess(len(kept), len(stored))
            journal.execute("UPDATE meta SET value = ? WHERE key = 'run_config'", (kept,))
            journal.commit()

    def test_different_files_in_mode_shared_are_refused_by_name(self):
        run = self.run_of(data={"mode": "shared"})
        self.start(run, eu=self.tokens("eu", range(*EU)))
        eventually(lambda: run.site("eu"), "eu has joined")
        worker = run.start_worker("us", f"--data={self.tokens('us', range(*US))}")
        self.assertEqual(worker.wait(), REFUSED, worker.log())
        self.assertRegex(worker.log(), r"site us: data of 180 tokens, fingerprint [0-9a-f]{16}; site eu's has 180 tokens, "
                                       r"fingerprint [0-9a-f]{16}: data.mode shared expects the same data: each "
                                       r"site's log names the files that it reads; to train on different data, "
                                       r"data.mode: own")

    def test_equal_files_in_mode_own_are_refused_naming_both_also_after_a_restart(self):
        run = self.run_of(data={"mode": "own"})
        file = self.tokens("one", range(*EU))
        self.start(run, eu=file)
        eventually(lambda: run.site("eu"), "eu has joined")
        for _ in range(2):
            worker = run.start_worker("us", f"--data={file}")
            self.assertEqual(worker.wait(), REFUSED, worker.log())
            self.assertRegex(worker.log(), r"site us: data of 180 tokens, fingerprint [0-9a-f]{16}, and site eu has the "
                                           r"same: data.mode own expects other data in each site")
            run.coordinator.kill()
            run.start_coordinator()

    def test_equal_files_in_mode_own_are_taken_where_the_run_allows_them(self):
        run = self.run_of(run={"steps": 2}, sync={"sync_every": 1}, data={"mode": "own", "allow_equal": True})
        file = self.tokens("one", range(*EU))
        self.start(run, eu=file, us=file)
        run.await_done()

    def test_each_site_evaluates_on_its_own_tail_unless_there_is_a_held_out_file(self):
        files = {"eu": self.tokens("eu", range(*EU)), "us": self.tokens("us", range(*US))}
        run = self.run_of(eval={"held_out": 0.1})
        self.start(run, **files)
        run.await_done()
        status = run.status()
        self.assertIsNone(status["eval_loss"])
        self.assertIn("each site evaluates on the tail of its own data", status["eval_loss_reason"])
        self.assertEqual(set(status["eval_loss_by_site"]), {"eu", "us"})
        self.assertEqual(status["eval_loss_by_site"]["eu"]["versions"], [4])
        shown = run.program("text", "causewayctl", "status", f"--coordinator={run.grpc}")
        self.assertEqual(shown.wait(), DONE, shown.log())
        self.assertIn("eval loss of each site's own data: eu ", shown.output())
        run.stop_coordinator()

        held_out = self.tokens("held_out", range(100, 150))
        run = self.run_of()
        for site, file in files.items():
            run.start_worker(site, f"--data={file}", f"--held_out={held_out}")
        run.await_done()
        status = run.status()
        self.assertEqual(status["eval_loss_reason"], "")
        self.assertEqual(status["eval_loss"]["versions"], [4])
        self.assertEqual(status["eval_loss_by_site"], {})
        self.assertEqual({site["held_out"]["tokens"] for site in status["sites"]}, {50})

    def test_held_out_files_that_differ_are_refused_and_so_is_one_in_mode_shared(self):
        run = self.run_of()
        run.start_worker("eu", f"--data={self.tokens('eu', range(*EU))}",
                         f"--held_out={self.tokens('tail', range(100, 150))}")
        eventually(lambda: run.site("eu"), "eu has joined")
        worker = run.start_worker("us", f"--data={self.tokens('us', range(*US))}",
                                  f"--held_out={self.tokens('other', range(100, 151))}")
        self.assertEqual(worker.wait(), REFUSED, worker.log())
        self.assertRegex(worker.log(), r"site us: held-out data of 51 tokens, .*; site eu's has 50 tokens, ")
        shared = self.run_of(data={"mode": "shared"})
        worker = shared.start_worker("us", f"--data={self.folder / 'us.bin'}", f"--held_out={self.folder / 'tail.bin'}")
        self.assertEqual(worker.wait(), BAD_INPUT, worker.log())
        self.assertIn("--held_out: expected none, since in data.mode shared", worker.log())


def saved(array):
    """The bytes of numpy.save."""
    file = io.BytesIO()
    numpy.save(file, array)
    return file.getvalue()


def packed(kind, name, contents):
    """The bytes of an archive with this one file."""
    file = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(name, contents)
    else:
        with tarfile.open(fileobj=file, mode="w") as archive:
            info = tarfile.TarInfo(name)
            info.size = len(contents)
            archive.addfile(info, io.BytesIO(contents))
    return file.getvalue()


class WhatIsDataTest(SitesOnDataTest):
    """Files that people name as data and that are none: each refused by what it is."""

    def setUp(self):
        self.run_here = self.run_of(model={"vocab_size": 1_000}, membership={"min_sites": 2})
        self.text = "A line of text.\n" * 100
        self.ids = numpy.arange(2_000) * 7 % 1_000

    def log_of(self, data, *flags, code=BAD_INPUT):
        worker = self.run_here.start_worker("eu", f"--data={data}", *flags)
        self.assertEqual(worker.wait(), code, worker.log())
        return worker.log()

    def file(self, name, contents):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
        return path

    def joined(self, data, *flags):
        """A worker that reads the data and waits for others, and the number of its tokens."""
        worker = self.run_here.start_worker("eu", f"--data={data}", *flags)
        eventually(lambda: self.run_here.site("eu"), "eu has joined")
        tokens = self.run_here.site("eu")["data"]["tokens"]
        self.assertEqual(worker.terminate(), DONE, worker.log())
        self.run_here = self.run_of(model={"vocab_size": 1_000}, membership={"min_sites": 2})
        return tokens, worker.log()

    def test_a_file_of_another_kind_is_refused_with_the_way_out_whatever_its_name(self):
        text = self.text.encode()
        kinds = {"x.gz": (gzip.compress(text), "a gzip file (.gz): unpack it with gunzip"),
                 "x.jsonl": (bz2.compress(text), "a bzip2 file (.bz2): unpack it with bunzip2"),
                 "x.xz": (lzma.compress(text), "an xz file (.xz): unpack it with unxz"),
                 "x.zip": (packed("zip", "a.txt", text), "a zip archive: unpack it with unzip"),
                 "x.bin": (packed("tar", "a.txt", text), "a tar archive (.tar): unpack it with tar -x"),
                 "x.npz": (packed("zip", "ids.npy", saved(self.ids)), "an archive of NumPy arrays (.npz): write the array"),
                 "x.pkl": (pickle.dumps(self.ids), "a pickle of Python"),
                 "x": (pickle.dumps(list(range(100)), protocol=2), "a pickle of Python"),
                 "x.html.txt": ("<!DOCTYPE html><html>", "a web page (HTML)"),
                 "train.bin": ("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a pointer of Git LFS")}
        for name, (contents, message) in kinds.items():
            path = self.file(name, contents)
            self.assertIn(f"{path}: expected text, JSON lines or tokens, got {message}", self.log_of(path))

    def test_text_that_is_no_utf8_is_refused(self):
        self.assertIn("expected text in UTF-8, got byte 0xe9 in line 2",
                      self.log_of(self.file("a.txt", b"one\ncaf\xe9 noir\n" * 100)))
        self.assertIn("got text in UTF-16", self.log_of(self.file("b.txt", self.text.encode("utf-16"))))
        self.assertIn("expected text in UTF-8", self.log_of(self.file("tokens.dat", self.ids.astype("<u2").tobytes())))

    def test_tokens_that_look_like_another_type_are_named_by_it_and_read_where_they_fit(self):
        for dtype, look in (("<i8", "int64"), (">i8", "big-endian int64"), ("<f4", "float32"), ("<f8", "float64"),
                            (">i4", "big-endian uint32"), (">u2", "big-endian uint16"), ("<f2", "float16")):
            path = self.file("train.bin", self.ids.astype(dtype).tobytes())
            if dtype == "<i8":
                _, log = self.joined(path)
                self.assertIn(f'it looks like {look} as well. If that is what it is: write numpy.array(tokens, "<u2")', log)
            else:
                self.assertRegex(self.log_of(path), "expected less than vocab_size 1000, got .* write numpy.array")
        _, log = self.joined(self.file("train.bin", self.ids.astype("<i4").tobytes()))
        self.assertIn("it looks like uint32 as well. If that is what it is: data.token_bytes: 4", log)
        self.run_here = self.run_of(model={"vocab_size": 100_000}, data={"token_bytes": 4}, membership={"min_sites": 2})
        path = self.file("train.bin", (self.ids * 99).astype("<i8").tobytes())
        _, log = self.joined(path)
        self.assertIn("is read as uint32 (data.token_bytes: 4)", log)
        self.assertIn("it looks like int64 as well", log)

    def test_an_array_of_numpy_is_read_by_its_header(self):
        for dtype in ("<u2", "<i4", "<i8"):
            tokens, _ = self.joined(self.file("train.npy", saved(self.ids.astype(dtype))))
            self.assertEqual(tokens, 2_000)
        self.assertIn("got float64", self.log_of(self.file("train.npy", saved(self.ids.astype(float)))))

    def test_a_held_out_file_in_the_folder_of_the_data_is_left_out_of_training(self):
        self.file("data/a.bin", self.ids[:500].astype("<u2").tobytes())
        val = self.file("data/val.bin", self.ids[500:600].astype("<u2").tobytes())
        link = self.folder / "link.bin"
        os.symlink(val, link)
        for held_out in (val, link):
            tokens, log = self.joined(self.folder / "data", f"--held_out={held_out}")
            self.assertEqual(tokens, 500)
            self.assertIn("/data: a.bin; skips val.bin, which --held_out holds out", log)
        self.assertIn("got the same file for both", self.log_of(val, f"--held_out={link}"))

    def test_what_is_skipped_in_a_folder_is_named_and_a_readme_alone_is_no_data(self):
        for name in ("README.txt", "a.jsonl.gz", "b.jsonl.gz"):
            self.file(f"packed/{name}", "About the data.\n" * 100)
        self.assertIn("expected data in the folder, got README.txt alone; skips 2 of .gz (a.jsonl.gz, b.jsonl.gz)",
                      self.log_of(self.folder / "packed"))
        for name in ("a.txt", "._a.txt", ".b.txt", "c.txt.incomplete"):
            self.file(f"texts/{name}", self.text)
        tokens, log = self.joined(self.folder / "texts")
        self.assertEqual(tokens, len(self.text))
        self.assertIn('skips 2 names that begin with "." (._a.txt, .b.txt); 1 of .incomplete (c.txt.incomplete)', log)

    def test_other_keys_of_json_lines_are_ignored_and_a_fault_is_named_by_line_and_column(self):
        lines = [json.dumps({"text": "word " * 20, "score": score}) for score in (1, float("nan"), -float("inf"))]
        lines.append(json.dumps({"text": "😀" * 20, "title": "cut \ud83d"}))
        tokens, _ = self.joined(self.file("a.jsonl", "\n".join(lines) + "\n\n  \n"))
        self.assertEqual(tokens, 3 * 101 + 81)
        path = self.file("a.jsonl", "\n".join([*lines, json.dumps({"text": "cut \ud83d"})]))
        self.assertIn("a.jsonl: expected JSON, line 5, column 15: got \\ud83d in \"text\", half of a character",
                      self.log_of(path))


if __name__ == "__main__":
    unittest.main()
