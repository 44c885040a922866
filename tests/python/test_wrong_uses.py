"""Wrong uses of causeway.Site, by name: each raises what was expected and what came, and the process goes on."""

import os
import socket
import threading
import unittest
import unittest.mock

import numpy

import causeway
from harness import EndToEndTest, synthetic
from test_mixed import needs_library


def ones(*shape, dtype=numpy.float32):
    return numpy.ones(shape, dtype)


@needs_library
class WrongUseTest(EndToEndTest):
    """Against one coordinator, whose model has t0 [4] and t1 [2, 3]."""

    def setUp(self):
        self.new = self.new_run(synthetic({"a": 0.5}, [[4], [2, 3]], sync={"num_fragments": 2}))
        self.new.start_coordinator()

    def site(self, parameters=None, **settings):
        parameters = {"t0": ones(4), "t1": ones(2, 3)} if parameters is None else parameters
        site = causeway.Site(parameters, **{"coordinator": self.new.grpc, "site": "a"} | settings)
        self.addCleanup(site.close)
        return site

    def joined(self, **settings):
        site = self.site(**settings)
        site.join()
        return site

    def refused(self, kind, text, use, *arguments, **settings):
        """Returns the error; `text` is in it, and it tells expected and got apart."""
        with self.assertRaises(kind) as caught:
            use(*arguments, **settings)
        self.assertIn(text, str(caught.exception))
        return caught.exception

    def wrong(self, text, parameters=None, **settings):
        error = self.refused(causeway.ConfigError, text, self.site, parameters, **settings)
        self.assertTrue(error.expected and error.got, f"expected {error.expected!r}, got {error.got!r}: {error}")
        self.assertEqual(error.code, 2)
        return error

    # ---- Settings ----

    def test_no_coordinator(self):
        self.wrong("as an argument or in CAUSEWAY_COORDINATOR, got neither", coordinator=None)

    def test_no_site(self):
        self.wrong("as an argument or in CAUSEWAY_SITE, got neither", site=None)

    def test_a_coordinator_without_a_port(self):
        self.wrong("expected", coordinator="127.0.0.1")

    def test_a_coordinator_with_spaces_around_it_is_taken_and_a_url_is_not(self):
        self.site(coordinator=f" {self.new.grpc}\n").close()
        for url in (f"http://{self.new.grpc}", f" https://{self.new.grpc}/"):
            error = self.wrong(f"coordinator: expected HOST:PORT without {url.split(':')[0].strip()}://", coordinator=url)
            self.assertEqual(error.got, f"'{url}'")

    def test_a_proxy_that_is_not_there_or_of_another_kind(self):
        none = dict.fromkeys(("grpc_proxy", "https_proxy", "http_proxy", "all_proxy", "HTTPS_PROXY", "HTTP_PROXY"), "")
        for proxy, text in (("", "got none of them"), ("socks5://127.0.0.1:1", "gRPC cannot use one of socks5://")):
            with unittest.mock.patch.dict(os.environ, none | {"ALL_PROXY": proxy}):
                self.wrong(text, use_proxy=True)
        with unittest.mock.patch.dict(os.environ, none | {"ALL_PROXY": "http://127.0.0.1:1", "no_proxy": "127.0.0.1"}):
            self.site(use_proxy=True)

    def test_a_site_whose_name_no_run_allows(self):
        self.wrong("expected", site="e u/")

    def test_a_coordinator_that_is_not_there(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
            error = self.refused(causeway.UnreachableError, address, self.site, coordinator=address,
                                 connect_timeout_s=1)
        self.assertEqual(error.code, 5)

    def test_a_setting_that_there_is_not(self):
        self.wrong("sync_evry: expected one of", sync_evry=3)

    def test_a_setting_of_another_type(self):
        self.wrong("connect_timeout_s: expected int, got '3 s'", connect_timeout_s="3 s")

    def test_a_certificate_that_is_not_there(self):
        self.refused(causeway.ConfigError, "/none.pem", self.site, tls_ca="/none.pem", tls_cert="/none.pem",
                     tls_key="/none.pem")

    def test_one_of_three_settings_of_tls(self):
        self.refused(causeway.ConfigError, "missing: tls_cert and tls_key", self.site, tls_ca="/none.pem")

    def test_another_interval_than_the_runs(self):
        error = self.wrong("sync.sync_every: expected 20 (by this script), got 6 (of the run)", sync_every=20)
        self.assertEqual((error.expected, error.got), ("20 (by this script)", "6 (of the run)"))

    # ---- The model ----

    def test_a_list_in_place_of_an_array(self):
        self.wrong("parameter t0: expected a numpy array, got list", {"t0": [1.0] * 4})

    def test_float64(self):
        self.wrong("parameter t0: expected dtype float32, got float64", {"t0": ones(4, dtype=numpy.float64)})

    def test_an_array_that_is_read_only(self):
        array = ones(4)
        array.flags.writeable = False
        self.wrong("got one that is read-only", {"t0": array})

    def test_an_array_that_is_not_contiguous(self):
        self.wrong("got one that is not contiguous", {"t1": ones(3, 2).T})

    def test_a_kind_that_there_is_not(self):
        self.wrong("expected matrix, embedding, norm, head, expert or buffer, got matrx", kinds={"t0": "matrx"})

    def test_a_kind_for_no_parameter(self):
        self.wrong("kinds: expected names of parameters, got t9", kinds={"t9": "matrix"})

    def test_another_shape_than_the_runs(self):
        self.wrong("expected tensor t1 [2,3]", {"t0": ones(4), "t1": ones(3, 2)})

    def test_a_tensor_too_few(self):
        self.wrong("expected tensor t1 [2,3]", {"t0": ones(4)})

    def test_a_tensor_too_many(self):
        self.wrong("t2", {"t0": ones(4), "t1": ones(2, 3), "t2": ones(1)})

    # ---- Calls ----

    def test_a_call_on_another_thread(self):
        site, errors = self.joined(), []

        def step():
            try:
                site.after_step()
            except causeway.FailedError as error:
                errors.append(str(error))
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
        self.assertIn("thread", errors[0])

    def test_a_step_before_joining(self):
        self.refused(causeway.FailedError, "expected a site that has joined", self.site().after_step)

    def test_a_step_after_leaving(self):
        site = self.joined()
        site.leave()
        self.refused(causeway.FailedError, "got one that was closed", site.after_step)

    def test_joining_twice(self):
        self.refused(causeway.FailedError, "expected one call of join", self.joined().join)

    def test_a_value_that_is_not_finite(self):
        parameters = {"t0": ones(4), "t1": ones(2, 3)}
        site = self.site(parameters)
        site.join()
        parameters["t1"][1, 1] = numpy.inf

        def train():
            for _ in range(20):
                site.after_step()
        error = self.refused(causeway.NonFiniteError, "t1", train)
        self.assertEqual((error.code, error.tensor, error.index), (4, "t1", 4))

    def test_an_evaluation_of_no_anchor(self):
        self.refused(causeway.FailedError, "expected a call of site_read_anchor", self.joined().report_eval, 1.0)

    def test_an_evaluation_that_is_not_finite(self):
        site = self.joined()
        site.read_anchor()
        self.refused(causeway.ConfigError, "expected a finite loss", site.report_eval, float("nan"))

    def test_a_second_site_of_the_name(self):
        self.joined()
        self.refused(causeway.FailedError, "expected one site a in this process, got a second: close the one before", self.joined)

    # ---- States ----

    def test_a_state_of_garbage(self):
        self.refused(causeway.RestoreError, "", self.site().restore, {"site": os.urandom(100)})

    def test_a_state_that_lacks_a_part(self):
        site = self.joined()
        state = site.capture()
        site.leave()

        def take_up(parts):
            other = self.site()
            other.restore(parts)
            other.join()
        for missing in state:
            parts = {name: data for name, data in state.items() if name != missing}
            self.refused(causeway.Error, "got ", take_up, parts)

    def test_a_state_twice_or_after_joining(self):
        site = self.joined()
        state = site.capture()
        self.refused(causeway.FailedError, "expected once, before site_join", site.restore, state)
        site.leave()
        other = self.site()
        other.restore(state)
        self.refused(causeway.FailedError, "expected once, before site_join", other.restore, state)

    def test_a_state_beside_the_parameters_of_another_step(self):
        site = self.joined()
        site.after_step()
        state = site.capture()
        site.close()
        other = self.site({"t0": ones(4) * 3, "t1": ones(2, 3)})
        other.restore(state)
        error = self.refused(causeway.RestoreError, "expected the parameters of step 1", other.join)
        self.assertTrue(error.expected and error.got)


if __name__ == "__main__":
    unittest.main()
