"""causeway.Site and what lies under it, against a stand-in for the library: waits, pieces of work, errors, log lines."""

import contextlib
import io
import logging
import os
import signal
import threading
import unittest

import numpy

import causeway
from causeway import names
from causeway._library import ADD, AGAIN, ANCHOR, BEFORE_CHANGE, MIX, OK, READ, STOP, WORK, WRITE
from fake_library import CONFIG, FakeLibrary


def arrays():
    return {"w": numpy.arange(6, dtype=numpy.float32).reshape(2, 3), "b": numpy.ones(4, numpy.float32)}


class SiteTest(unittest.TestCase):
    def setUp(self):
        self.fake = FakeLibrary()
        loaded = self.fake.loaded()
        loaded.__enter__()
        self.addCleanup(loaded.__exit__, None, None, None)
        self.parameters = arrays()

    def site(self, **settings):
        site = causeway.Site(self.parameters, coordinator="hub:1", site="eu", **settings)
        self.addCleanup(site.close)
        return site


class WorkTest(SiteTest):
    def test_pieces_are_copied_between_the_arrays_and_the_library(self):
        self.fake.give(READ, tensor=0, first=1, count=3)
        self.fake.give(WRITE, tensor=1, first=2, count=2, values=[7, 8])
        self.fake.answers["site_join"] = [AGAIN, WORK, OK]
        self.site().join()
        self.assertEqual(self.fake.done[0], (READ, 0, 1, [1, 2, 3], False))
        self.assertEqual(self.parameters["b"].tolist(), [1, 1, 7, 8])

    def test_late_copies_are_made_at_once(self):
        site = self.site()
        site.join()
        self.fake.give(READ, tensor=1, count=4, flags=BEFORE_CHANGE)
        self.fake.answers["site_after_step"] = [WORK, OK]
        site.after_step()
        self.assertEqual(self.fake.done[0][3], [1, 1, 1, 1])

    def test_work_that_is_left_when_a_call_is_through_is_done_before_it_returns(self):
        site = self.site()
        site.join()
        self.fake.give(READ, tensor=1, count=4, flags=BEFORE_CHANGE)
        site.after_step()
        self.assertEqual(len(self.fake.done), 1)

    def test_the_anchor_comes_in_arrays_of_its_own(self):
        site = self.site()
        site.join()
        self.fake.give(WRITE, tensor=0, count=6, flags=ANCHOR, values=[9] * 6)
        self.fake.give(WRITE, tensor=1, count=4, flags=ANCHOR, values=[5] * 4)
        self.fake.answers["site_read_anchor"] = [WORK, OK]
        anchor = site.read_anchor()
        self.assertEqual(anchor["w"].tolist(), [[9] * 3] * 2)
        self.assertEqual(self.parameters["w"].tolist(), arrays()["w"].tolist())

    def test_pieces_move_the_arrays_in_place(self):
        theta = self.parameters["w"].reshape(-1)
        theta[:] = 8
        self.fake.give(MIX, first=2, count=3, factor=0.25, values=[4] * 3)
        self.fake.give(ADD, first=5, count=1, factor=0.5, values=[2])
        self.fake.answers["site_join"] = [WORK]
        self.site().join()
        self.assertEqual(theta.tolist(), [8, 8, 5, 5, 5, 7])

    def test_a_piece_that_cannot_be_done_is_given_back_as_failed(self):
        self.fake.give(READ, count=1)
        self.fake.answers["site_join"] = [WORK]
        self.fake.do_site_do_work = lambda *_: self.fake.fail("site_do_work", 1, "no such place") or 0
        with self.assertRaisesRegex(causeway.FailedError, "no such place"):
            self.site().join()
        self.assertTrue(self.fake.done[0][4])

    def test_a_rejoin_moves_the_step_and_the_stays(self):
        site = self.site()
        site.join()
        self.fake.next_step, self.fake.progress["stays"] = 40, 2
        self.assertEqual(site.after_step(), 40)
        self.assertEqual((site.step, site.stays), (40, 2))

    def test_reports_reach_the_library(self):
        site = self.site()
        site.join()
        site.after_step(tokens=512, loss=2.5, step_s=0.25)
        self.assertEqual((self.fake.report.tokens, self.fake.report.loss, self.fake.report.step_s), (512, 2.5, 0.25))
        self.assertEqual(self.fake.report.struct_size, 32)


class WaitTest(SiteTest):
    """Ctrl-C: the wait ends at the poll in which the signal came, and each poll is at most 100 ms."""

    def interrupt_at_poll(self, number, of):
        polls = 0

        def on_call(name):
            nonlocal polls
            polls += name == of
            if polls == number and name == of:
                os.kill(os.getpid(), signal.SIGINT)
        self.fake.on_call = on_call

    def check_interrupted(self, wait, of):
        self.fake.answers[of] = [AGAIN] * 50
        self.interrupt_at_poll(3, of)
        with self.assertRaises(KeyboardInterrupt):
            wait()
        self.assertEqual(self.fake.calls.count(of), 3)
        self.assertLessEqual(max(self.fake.timeouts), 100)

    def test_ctrl_c_ends_opening(self):
        self.check_interrupted(self.site, "run_open")
        self.assertIn("run_close", self.fake.calls)

    def test_ctrl_c_ends_joining(self):
        self.check_interrupted(self.site().__enter__, "site_join")
        self.assertIn("site_close", self.fake.calls)

    def test_ctrl_c_ends_a_stall_and_the_site_leaves_at_once(self):
        def stall():
            with self.site() as site:
                site.after_step()
        self.fake.answers["site_leave"] = [AGAIN] * 50
        self.check_interrupted(stall, "site_after_step")
        self.assertEqual(self.fake.calls.count("site_leave"), 2)
        self.assertEqual(self.fake.left, (False, "KeyboardInterrupt"))
        self.assertNotIn("site_drain", self.fake.calls)

    def test_no_call_comes_before_joining_and_joining_comes_once(self):
        site = self.site()
        for call in (site.after_step, site.capture, site.read_anchor, site.complete, site.drain):
            self.assertRaisesRegex(causeway.FailedError, "expected a site that has joined", call)
        site.join()
        self.assertRaisesRegex(causeway.FailedError, "expected one call of join", site.join)

    def test_ctrl_c_ends_leaving(self):
        site = self.site()
        site.join()
        self.check_interrupted(site.leave, "site_leave")
        self.assertIn("site_close", self.fake.calls)

    def test_a_wait_goes_on_until_its_call_is_through(self):
        self.fake.answers["site_join"] = [AGAIN] * 30
        self.fake.next_step = 7
        self.assertEqual(self.site().join(), 7)
        self.assertEqual(self.fake.calls.count("site_join"), 31)

    def test_a_drain_ends_when_its_time_is_over(self):
        site = self.site()
        site.join()
        self.fake.answers["site_drain"] = [AGAIN] * 50
        self.assertFalse(site.drain(0.5))
        self.assertEqual(self.fake.calls.count("site_drain"), 5)


class PartingTest(SiteTest):
    def enter(self, steps=0):
        self.fake.config = CONFIG | {"run": {"steps": steps}}
        return self.site()

    def test_after_the_last_step_the_site_completes(self):
        with self.enter(steps=2) as site:
            while not site.over:
                site.after_step()
        self.assertIn("site_complete", self.fake.calls)
        self.assertEqual(self.fake.left, (True, "all steps are done"))

    def test_a_stop_drains(self):
        with self.enter() as site:
            self.fake.answers["site_after_step"] = [STOP]
            while not site.over:
                site.after_step()
        self.assertEqual([call for call in self.fake.calls if call in ("site_complete", "site_drain")], ["site_drain"])
        self.assertEqual(self.fake.left, (False, "drained"))

    def test_a_stop_that_the_coordinator_asks_for_is_seen_though_no_step_waits(self):
        with self.enter() as site:
            self.fake.progress["stopping"] = True
            while not site.over:
                site.after_step()
        self.assertTrue(site.should_stop)

    def test_an_error_of_the_script_is_the_reason(self):
        with self.assertRaisesRegex(ValueError, "no such batch"):
            with self.enter():
                raise ValueError("no such batch")
        self.assertIn("site_drain", self.fake.calls)
        self.assertEqual(self.fake.left, (False, "ValueError: no such batch"))

    def test_a_failed_sync_does_not_hide_the_scripts_error(self):
        with self.assertRaisesRegex(ValueError, "mine"):
            with self.enter():
                self.fake.fail("site_drain", 1)
                self.fake.fail("site_leave", 1)
                raise ValueError("mine")
        self.assertIn("site_close", self.fake.calls)

    def test_leaving_twice_is_leaving_once(self):
        site = self.enter()
        site.join()
        site.leave()
        site.leave()
        site.close()
        self.assertEqual(self.fake.calls.count("site_leave"), 1)
        self.assertEqual(self.fake.calls.count("site_close"), 1)

    def test_what_was_not_closed_is_closed_with_its_object(self):
        site = self.enter()
        del site
        self.doCleanups()
        self.assertEqual(self.fake.calls.count("site_close"), 1)
        self.assertEqual(self.fake.calls.count("run_close"), 1)


class StateTest(SiteTest):
    def test_a_state_goes_back_aligned_and_whole(self):
        site = self.site()
        site.join()
        state = site.capture()
        self.assertIn("state_close", self.fake.calls)
        self.assertEqual({name: bytes(data) for name, data in state.items()}, self.fake.parts)
        self.site().restore({name: bytes(data) for name, data in state.items()})
        self.assertEqual(self.fake.restored, self.fake.parts)

    def test_what_the_library_says_of_a_state_is_a_restore_error(self):
        site = self.site()
        site.restore({"a": b"1"})
        self.fake.fail("site_join", 2, "state: expected the parameters of step 3, got others")
        with self.assertRaisesRegex(causeway.RestoreError, "step 3"):
            site.join()


class ErrorTest(SiteTest):
    def test_codes_have_exceptions_with_all_that_the_library_says(self):
        kinds = [causeway.FailedError, causeway.ConfigError, causeway.RefusedError, causeway.NonFiniteError,
                 causeway.UnreachableError]
        for code, kind in enumerate(kinds, 1):
            self.fake.fail("site_open", code, "sentence", expected="1", got="2", tensor="w", index=5)
            with self.assertRaises(kind) as caught:
                self.site()
            error = caught.exception
            self.assertEqual((str(error), error.code, error.expected, error.got, error.tensor, error.index),
                             ("sentence", code, "1", "2", "w", 5))

    def test_a_library_of_another_interface_is_refused(self):
        self.fake.answers["abi"] = [2]
        with self.assertRaisesRegex(causeway.ConfigError, "expected interface 1, got 2"):
            self.fake.loaded().__enter__()

    def test_progress_may_be_long(self):
        self.fake.progress["sites"] = ["a" * 1000] * 100
        self.assertEqual(self.site().progress(), {"run_steps": 0} | self.fake.progress)

    def test_progress_and_stop_may_be_called_on_another_thread(self):
        site = self.site()
        thread = threading.Thread(target=site.stop)
        thread.start()
        thread.join()
        self.assertTrue(site.should_stop)


class LogTest(SiteTest):
    def test_lines_go_to_logging_with_their_levels(self):
        site = self.site()
        self.fake.lines = [(0, b"zero", 0), (1, b"one", 0), (2, b"two", 3), (3, b"caf\xc3\xa9 %s", 0)]
        with self.assertLogs("causeway", logging.DEBUG) as logs:
            site.join()
        self.assertEqual(logs.output, ["INFO:causeway:joins run fake as eu", "DEBUG:causeway:zero", "INFO:causeway:one",
                                       "WARNING:causeway:3 log lines were lost before the next one",
                                       "WARNING:causeway:two", "ERROR:causeway:café %s"])


    def test_a_terminal_has_the_lines_that_logging_would_not_show(self):
        self.fake.config = {**self.fake.config, "run": {"steps": 100}}
        self.fake.progress["run_steps"] = 100
        for settings, words in (({}, ["causeway: joins run fake as eu", "causeway: waits", "causeway: step 1 of 100, loss 2.5, 0 s left"]),
                                ({"log": False}, [])):
            self.fake.lines = [(1, b"waits", 0), (0, b"for developers", 0)]
            with contextlib.redirect_stderr(io.StringIO()) as told, unittest.mock.patch("causeway._handles.Steps.TELL_S", 0):
                site = self.site(**settings)
                site.join()
                site.after_step(tokens=1, loss=2.5)
                site.close()
            self.assertEqual(told.getvalue().splitlines(), words)
        with self.assertLogs("causeway", logging.INFO), contextlib.redirect_stderr(io.StringIO()) as told:
            self.site().join()
        self.assertEqual(told.getvalue(), "")


class SettingsTest(SiteTest):
    def test_the_environment_says_what_the_script_does_not(self):
        with unittest.mock.patch.dict(os.environ, {"CAUSEWAY_COORDINATOR": "other:2", "CAUSEWAY_SITE": "us",
                                                   "CAUSEWAY_TOKEN_FILE": "/t", "CAUSEWAY_TLS_CA": "/ca",
                                                   "CAUSEWAY_TLS_KEY": "/key"}):
            causeway.Site(self.parameters, site="eu", tls_key="own").close()
        self.assertEqual(self.fake.options, {"coordinator": "other:2", "site": "eu", "token_file": "/t", "tls_ca": "/ca",
                                             "tls_key": "own"})

    def test_settings_of_the_connection_reach_the_library(self):
        self.site(tls_ca="ca.pem", insecure=True, connect_timeout_s=2, max_up_mbit=5)
        self.assertEqual(self.fake.options, {"coordinator": "hub:1", "site": "eu", "tls_ca": "ca.pem", "insecure": True,
                                             "connect_timeout_s": 2, "max_up_mbit": 5.0})

    def test_kinds_and_layers_are_said_where_they_are_given(self):
        self.site(kinds={"w": "head"}, layers={"b": 3}, data={"tokens": 5, "digest": "ab"})
        self.assertEqual(self.fake.model, {"tensors": [
            {"name": "w", "shape": [2, 3], "dtype": "float32", "kind": "head"},
            {"name": "b", "shape": [4], "dtype": "float32", "layer": 3}], "data": {"tokens": 5, "digest": "ab"}})

    def test_expectations_that_the_run_meets_are_silent(self):
        self.site(sync_every=20, fragment_sync_delay=1, fragment_update_alpha=0.3, num_fragments=2, fragments=())


class NamesTest(unittest.TestCase):
    def test_wrappers_leave_no_trace(self):
        for wrapped, plain in {"module.layers.0.weight": "layers.0.weight",
                               "module._orig_mod.h.1._checkpoint_wrapped_module.attn.c": "h.1.attn.c",
                               "_orig_mod.module.module.w": "w", "encoder.module.w": "encoder.module.w",
                               "module": "module"}.items():
            self.assertEqual(names.plain(wrapped), plain)


if __name__ == "__main__":
    unittest.main()
