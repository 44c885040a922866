"""How Python sites end: Ctrl-C wherever they wait, forks, many sites one after the other, a killed coordinator."""

import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

import numpy

import causeway
import waiting_site
from harness import DONE, EndToEndTest, eventually, synthetic
from test_mixed import needs_library

HERE = pathlib.Path(__file__).parent


def alone(**sections):
    return synthetic({"a": 0.5}, [[1000]], **sections)


@needs_library
class InterruptTest(EndToEndTest):
    """KeyboardInterrupt reaches the script wherever it waits, and no thread is left."""

    def start(self, where, **sections):
        self.new = self.new_run(alone(**sections))
        self.new.start_coordinator()
        return self.program(self.new.folder, "site", sys.executable, HERE / "waiting_site.py", self.new.grpc, "a",
                            where)

    def check_interrupted(self, site):
        begin = time.monotonic()
        site.send(signal.SIGINT)
        self.assertEqual(site.wait(), DONE, site.log())
        ended = time.monotonic()
        self.assertRegex(site.output(), "interrupted at .*, threads left: 0\n")
        interrupted = float(site.output().split("interrupted at ")[1].split(",")[0])
        print(f"{self.id()}: {interrupted - begin:.3f} s until the script had control again, {ended - begin:.3f} s until "
              "the process had ended", file=sys.stderr)

    def test_while_it_joins(self):
        site = self.start("join", membership={"min_sites": 2})
        eventually(lambda: "opened" in site.output() and self.new.site("a"), "the site joins")
        self.assertNotIn("joined", site.output())
        self.check_interrupted(site)

    def test_while_it_stalls(self):
        site = self.start("stall", sync={"fragment_sync_delay": 1})
        eventually(lambda: "step 1" in site.output(), "the site steps")
        self.new.coordinator.send(signal.SIGSTOP)
        # The step that waits for an update prints nothing until it is through.
        last = [None, 0]

        def stalls():
            last[1] = last[1] + 1 if last[0] == site.output() else 0
            last[0] = site.output()
            return last[1] > 50
        eventually(stalls, "the site stalls")
        self.check_interrupted(site)

    def test_while_it_leaves(self):
        site = self.start("leave", run={"steps": 7})
        eventually(lambda: "step 7" in site.output(), "the site is through")
        self.new.coordinator.send(signal.SIGSTOP)
        site.send(signal.SIGCONT)
        eventually(lambda: "leaves" in site.output(), "the site leaves")
        self.check_interrupted(site)


@needs_library
class ManySitesTest(EndToEndTest):
    def setUp(self):
        self.new = self.new_run(alone())
        self.new.start_coordinator()

    def open_site(self, name="a"):
        return causeway.Site({"t0": numpy.ones(1000, numpy.float32)}, coordinator=self.new.grpc, site=name)

    def test_sites_that_have_left_leave_no_thread_and_no_file(self):
        def resources():
            return waiting_site.threads(), len(os.listdir("/proc/self/fd"))
        seen = {}
        for number in range(1, 51):
            with self.open_site() as site:
                site.after_step()
            seen[number] = resources()
        # gRPC and the kernel close theirs a moment after the last site.
        eventually(lambda: all(now <= then for now, then in zip(resources(), seen[5])), f"no more than after 5: {seen}")
        # gRPC's pools grow when the machine is busy, to a few each, and not with the sites.
        self.assertLess(len(os.listdir("/proc/self/task")), 25)

    def test_a_child_that_is_forked_cannot_use_the_site_and_the_parent_goes_on(self):
        site = self.open_site()
        for when in ("before joining", "after joining"):
            if when == "after joining":
                site.join()
            child = os.fork()
            if child == 0:
                try:
                    site.join() if when == "before joining" else site.after_step()
                    os._exit(1)
                except causeway.FailedError as error:
                    site.close()
                    os._exit(0 if "forked after the site was opened" in str(error) else 2)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0, when)
        for _ in range(20):
            site.after_step()
        self.assertEqual(site.step, 20)
        site.leave()

    def test_a_script_that_forgets_to_leave_ends_and_the_coordinator_hears_it(self):
        script = ("import causeway, numpy, sys\n"
                  "site = causeway.Site({'t0': numpy.ones(1000, numpy.float32)}, coordinator=sys.argv[1], site='a')\n"
                  "site.join()\n")
        subprocess.run([sys.executable, "-c", script, self.new.grpc], check=True, timeout=60)
        eventually(lambda: "site a: is out of the run: the program ends" in self.new.coordinator.log(),
                   "the coordinator has heard it")


@needs_library
class KilledTest(EndToEndTest):
    def test_a_killed_site_is_missed_at_once_though_processes_that_it_forked_live_on(self):
        script = ("import causeway, numpy, os, signal, sys\n"
                  "site = causeway.Site({'t0': numpy.ones(1000, numpy.float32)}, coordinator=sys.argv[1], site='a')\n"
                  "site.join()\n"
                  "if os.fork() == 0:\n"
                  "    print('forked', os.getpid(), flush=True)\n"
                  "    signal.pause()\n"  # as a DataLoader's worker waits
                  "signal.pause()\n")
        run = self.new_run(alone(membership={"lease_ms": 60000}))
        run.start_coordinator()
        site = run.program("site", sys.executable, "-c", script, run.grpc)
        eventually(lambda: "\n" in site.output(), "it has forked")
        child = int(site.output().split()[1])
        self.addCleanup(os.kill, child, signal.SIGKILL)
        site.kill()
        eventually(lambda: "control stream broke" in run.site("a").get("reason", ""), "the coordinator misses the site")
        os.kill(child, 0)  # it lives


@needs_library
class StopTest(EndToEndTest):
    def check_ended_by(self, command, *flags):
        run = self.new_run(alone())
        run.start_coordinator()
        with causeway.Site({"t0": numpy.ones(1000, numpy.float32)}, coordinator=run.grpc, site="a") as site:
            site.after_step()
            run.control(command, *flags)

            def over():
                site.after_step()
                return site.over
            eventually(over, f"the site has heard of the {command}")
            self.assertTrue(site.should_stop)
        eventually(lambda: "site a: is out of the run: drained" in run.coordinator.log(), "it has left")

    def test_causewayctl_stops_and_drains_a_site(self):
        self.check_ended_by("stop", "--yes")
        self.check_ended_by("drain", "--site=a")

    def test_a_coordinator_that_is_killed_and_started_again_is_followed(self):
        run = self.new_run(alone(run={"steps": 40}))
        run.start_coordinator()
        with causeway.Site({"t0": numpy.ones(1000, numpy.float32)}, coordinator=run.grpc, site="a") as site:
            while not site.over:
                if site.step == 20:
                    run.coordinator.kill()
                    run.start_coordinator()
                site.after_step()
        self.assertEqual(site.step, 40)
        eventually(lambda: run.status()["state"] == "done", "the run is done")


if __name__ == "__main__":
    unittest.main()
