"""The quickstart's --torch without PyTorch: which Python it takes, which text, and how it splits the text."""

import contextlib
import io
import pathlib
import re
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "deploy"))

import quickstart
from quickstart_lib import corpus, torch_trainer
from quickstart_lib.built_in import BuiltInTrainer

SITES = ["eu", "us", "asia"]


class TemporaryFolder(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def program(self, name, script):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n" + script + "\n")
        path.chmod(0o755)
        return path

    def trainer(self, script="exit 0"):
        """One with a Python that lacks nothing, as far as it says."""
        return torch_trainer.TorchTrainer(str(self.program("python", script)), self.folder, self.folder / "lib.so")


class Arguments(TemporaryFolder):
    def chosen(self, *arguments):
        return quickstart.chosen_trainer(quickstart.parse_arguments(arguments))

    def test_the_builtin_trainer_is_the_default(self):
        self.assertIsInstance(self.chosen("--minutes", "1"), BuiltInTrainer)

    def test_torch_stands_with_and_without_a_python(self):
        python = self.program("python", "exit 0")
        for arguments in (["--torch"], ["--torch", "--minutes", "1"], [f"--torch={python}"]):
            self.assertIsInstance(self.chosen(*arguments), torch_trainer.TorchTrainer)

    def test_a_python_without_the_modules_is_refused_by_their_names(self):
        lacking = self.program("python", "echo torch transformers")
        with self.assertRaisesRegex(torch_trainer.TorchError, f"--torch={lacking}: .*it lacks torch, transformers; "
                                    f"install them with {lacking} -m pip install"):
            self.chosen(f"--torch={lacking}")

    def test_the_modules_are_looked_for_by_the_python_itself(self):
        with unittest.mock.patch.object(torch_trainer, "MODULES", ("json", "no_such_module")):
            with self.assertRaisesRegex(torch_trainer.TorchError, "it lacks no_such_module;"):
                torch_trainer.checked_python(sys.executable)

    def test_what_is_no_python_is_refused(self):
        broken = self.program("python", "echo 'not for you' >&2; exit 3")
        nothing = self.program("nothing", "")
        nothing.write_bytes(b"\0")
        for name, message in ((broken, "ended with exit code 3: not for you"),
                              (self.folder / "absent", "no such program"), (nothing, "cannot run it")):
            with self.assertRaisesRegex(torch_trainer.TorchError, message):
                self.chosen(f"--torch={name}")


class Install(TemporaryFolder):
    def install(self, venv, pip):
        """With programs in place of python3 -m venv and of the environment's pip. Returns its output."""
        def run(command, **_):
            script = pip if "pip" in command else venv
            self.commands.append(" ".join(map(str, command)))
            return unittest.mock.Mock(returncode=script)

        self.commands = []
        trainer = torch_trainer.TorchTrainer(None, self.folder, self.folder / "lib.so")
        (self.folder / "torch").mkdir(exist_ok=True)
        with unittest.mock.patch.object(torch_trainer.subprocess, "run", run), \
                contextlib.redirect_stdout(io.StringIO()) as said:
            trainer.install()
        return said.getvalue()

    def test_it_says_what_it_costs_and_does_it_once(self):
        said = self.install(venv=0, pip=0)
        self.assertIn("downloads about 3 GB and takes 6.5 GB", said)
        self.assertEqual([f"/usr/bin/python3 -m venv {self.folder}/torch",
                          f"{self.folder}/torch/bin/python -m pip install --quiet torch transformers numpy"],
                         self.commands)
        self.assertEqual("", self.install(venv=1, pip=1))
        self.assertEqual([], self.commands)

    def test_a_failure_names_the_command_and_what_to_do_and_is_tried_again(self):
        with self.assertRaisesRegex(torch_trainer.TorchError, "the command /usr/bin/python3 -m venv .*python3-venv"):
            self.install(venv=1, pip=0)
        with self.assertRaisesRegex(torch_trainer.TorchError, "-m pip install .*network.*--torch=PYTHON"):
            self.install(venv=0, pip=1)
        self.install(venv=0, pip=0)
        self.assertEqual(2, len(self.commands))

    def test_nothing_is_installed_for_a_python_that_the_user_named(self):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            self.trainer("exit 0").install()
        self.assertEqual("", said.getvalue())


class Text(TemporaryFolder):
    def test_only_text_is_accepted(self):
        (self.folder / "shards").mkdir()
        for path in (self.folder / "tokens.bin", self.folder / "shards" / "a.bin"):
            path.write_bytes(bytes(1 << 20))
        for name, got in (("tokens.bin", "got a .bin file"), ("shards", "got a folder")):
            with self.assertRaisesRegex(corpus.CorpusError, f"expected a text file, .*{got}; without --torch"):
                self.trainer().check_data(self.folder / name, 3)

    def test_a_text_is_accepted_from_the_size_that_the_refusal_of_smaller_ones_names(self):
        text = self.folder / "text.txt"
        text.write_bytes(b"short")
        with self.assertRaisesRegex(corpus.CorpusError, "expected a text of ([0-9]+) bytes or more.* got 5") as refused:
            self.trainer().check_data(text, 3)
        text.write_bytes(b"x" * int(re.search("text of ([0-9]+)", str(refused.exception))[1]))
        self.assertEqual(text, self.trainer().check_data(text, 3))

    def test_each_byte_is_in_one_part_and_the_last_twentieth_is_held_out(self):
        for size in (100, 101, 119, 12345):
            held_out, *parts = torch_trainer.split(size, 3)
            self.assertEqual((size - size // 20, size), held_out)
            ends = [0]
            for begin, end in [*parts, held_out]:
                self.assertEqual(ends[-1], begin)
                ends.append(end)
            lengths = [end - begin for begin, end in parts]
            self.assertLessEqual(max(lengths) - min(lengths), 1)

    def test_the_sites_files_and_the_held_out_one_are_the_text(self):
        text = self.folder / "text.txt"
        text.write_bytes(bytes(i % 251 for i in range(10_001)))
        trainer = self.trainer()
        with unittest.mock.patch.object(torch_trainer, "COPY_BYTES", 1000):
            trainer.take(text, SITES, self.folder)
        parts = [(self.folder / "text" / f"{name}.txt").read_bytes() for name in [*SITES, "held_out"]]
        self.assertEqual(text.read_bytes(), b"".join(parts))
        self.assertEqual(500, len(parts[-1]))
        command, environment = trainer.site("us", "127.0.0.1:1")
        self.assertEqual(self.folder / "text" / "us.txt", command[-1])
        self.assertEqual(("127.0.0.1:1", "us", str(self.folder / "lib.so")), tuple(
            environment[f"CAUSEWAY_{name}"] for name in ("COORDINATOR", "SITE", "LIBRARY")))
        self.assertTrue(environment["PYTHONPATH"].startswith(str(torch_trainer.ROOT / "python")))


class Start(TemporaryFolder):
    """The untrained model, which the coordinator has until the first round is merged."""

    def evaluation_command(self, version):
        stack = unittest.mock.Mock(folder=self.folder)
        stack.status.return_value = {"fragments": [{"version": 0}, {"version": version}]}
        stack.run_program.return_value = "{}"
        text = self.folder / "text.txt"
        text.write_bytes(bytes(10_000))
        trainer = self.trainer()
        trainer.take(text, SITES, self.folder)
        trainer.training_begins(stack)
        stack.export.assert_called_once_with("start", self.folder / "start")
        trainer.evaluate(stack, self.folder / "export")
        return stack.run_program.call_args.args

    def test_it_is_evaluated_too(self):
        self.assertIn(f"--start={self.folder / 'start'}", self.evaluation_command(version=0))

    def test_an_export_that_may_hold_a_merged_round_is_not_taken_for_it(self):
        self.assertFalse([word for word in self.evaluation_command(version=1) if "--start" in str(word)])


class RunYaml(unittest.TestCase):
    def test_the_templates_have_a_value_for_each_word(self):
        trainer = BuiltInTrainer()
        trainer._vocab = 256
        for chosen in (trainer, torch_trainer.TorchTrainer(None, pathlib.Path("/x"), pathlib.Path("/x/lib.so"))):
            for run_id in (quickstart.RUN_ID, quickstart.CALIBRATION_ID):
                text = quickstart.run_yaml(chosen, run_id, 60, SITES)
                self.assertIn(f"run_id: {run_id}\n", text)
                self.assertNotIn("$", text)


if __name__ == "__main__":
    unittest.main()
