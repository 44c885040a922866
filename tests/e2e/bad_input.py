"""Shared by tests of people's mistakes: programs that end with a code and words, and a small run."""

import json

from harness import EndToEndTest, synthetic

PROGRAMS = ["causeway-coordinator", "causeway-worker", "causewayctl"]
SHAPES = [[10], [20]]


def config_of(**sections):
    return synthetic({"a": 0.5}, SHAPES, **sections)


class BadInputTest(EndToEndTest):
    def assert_ends(self, program, code, *messages):
        """It ends with that code, and its last words contain each of the messages."""
        self.assertEqual(program.wait(), code, program.log())
        for message in messages:
            self.assertIn(message, program.log())

    def run_program(self, program, *arguments):
        label = f"{program}-{len(self.programs)}"
        return self.program(self.folder, label, program, *arguments)

    def coordinator(self, *flags, config=None, text=None, **options):
        """A coordinator with that config, or the text of a run.yaml, in a state directory of its own unless told."""
        path = self.folder / f"run-{len(self.programs)}.yaml"
        path.write_text(text or json.dumps(config or config_of()))
        defaults = {"--listen": "127.0.0.1:0", "--http": "127.0.0.1:0", "--state_dir": path.with_suffix(".state")}
        given = {flag.split("=")[0] for flag in flags}
        flags += tuple(f"{name}={value}" for name, value in defaults.items() if name not in given)
        return self.run_program("causeway-coordinator", f"--config={path}", *flags, **options)

    def live_run(self, config):
        run = self.new_run(config)
        run.start_coordinator()
        return run
