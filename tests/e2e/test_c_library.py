"""libcauseway.so as a C program finds it: installed, through its CMake package, in a run beside native workers."""

import pathlib
import shutil
import subprocess
import unittest

from harness import BIN_DIR, DONE, EndToEndTest, synthetic

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINE = {"model": {"kind": "synthetic", "tensors": [{"name": "line", "shape": [2]}]}}


class CLibraryTest(EndToEndTest):
    def command(self, *arguments):
        done = subprocess.run([str(argument) for argument in arguments], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def build_example(self):
        prefix, build = self.folder / "prefix", self.folder / "example"
        self.command("cmake", "--install", BIN_DIR, "--component", "library", "--prefix", prefix)
        self.command("cmake", "-G", "Ninja", "-S", ROOT / "examples" / "c", "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}")
        self.command("cmake", "--build", build)
        return build / "site"

    def example_run(self):
        run = self.new_run(synthetic({"a": 0, "b": 0}, [[2]], run={"steps": 200}, **LINE))
        run.start_coordinator()
        return run

    def test_the_example_joins_a_run_and_fits_a_line(self):
        example = self.build_example()
        run = self.example_run()
        address = run.grpc
        sites = [subprocess.Popen([example, address, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                 for name in ("a", "b")]
        for site in sites:
            output, errors = site.communicate()
            self.assertEqual(site.returncode, DONE, errors)
            self.assertRegex(output, r"^y = [12]\.\d+ x \+ [01]\.\d+, loss 0\.\d+\n$")
        run.await_done()

    def test_a_wrong_model_ends_it_with_a_sentence(self):
        example = self.build_example()
        run = self.new_run(synthetic({"a": 0}, [[3]], run={"steps": 200}))
        run.start_coordinator()
        done = subprocess.run([example, run.grpc, "a"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("error 2: model: expected tensor t0 [3] matrix of layer 0 of the run's model, got none", done.stderr)

    def test_nothing_but_the_functions_of_the_header_is_exported(self):
        names = {line.split()[-1] for line in self.command("nm", "-D", "--defined-only",
                                                           BIN_DIR / "libcauseway.so").splitlines()}
        header = (ROOT / "worker" / "library" / "causeway.h").read_text()
        self.assertGreater(len(names), 20)
        for name in names:
            self.assertRegex(name, r"^causeway_")
            self.assertIn(f" {name}(", header)


if __name__ == "__main__":
    unittest.main()
