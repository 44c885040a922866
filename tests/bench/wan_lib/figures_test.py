import unittest

from wan_lib import figures


def trace_of(*reports):
    trace = figures.SiteTrace()
    for wall_s, step, compute_s in reports:
        trace.note({"wall_s": wall_s, "step": step, "compute_s": compute_s, "stall_s": wall_s - compute_s})
    return trace


class CellTest(unittest.TestCase):
    def test_bounds_are_those_of_the_payload_on_the_coordinators_link(self):
        for rate, codec, bound in ((10, "float32", 0.008), (10, "int4", 0.064), (10, "rotated_sign", 0.245),
                                   (50, "int4", 0.32), (1000, "float32", 0.81), (200, "int4", 1)):
            self.assertAlmostEqual(figures.Cell(rate, codec, "auto").bound, bound, delta=0.005, msg=f"{rate} {codec}")

    def test_a_window_is_whole_rounds_after_every_fragment_was_applied(self):
        window = figures.window_of(figures.Cell(1000, "int4", "1"))
        self.assertEqual((window.begin, window.end, window.fragments), (128 + 112 + 1, 128 + 112 + 1 + 5 * 128, 40))

    def test_where_no_round_fits_single_fragments_are_measured(self):
        window = figures.window_of(figures.Cell(10, "float32", "1"))
        self.assertEqual((window.begin, window.end, window.fragments), (129, 129 + 2 * 16, 2))


class SiteTraceTest(unittest.TestCase):
    def test_a_stall_at_a_boundary_counts_to_the_window_before_it(self):
        trace = trace_of((1.0, 40, 1.0), (2.0, 64, 1.6), (3.0, 64, 1.6), (4.0, 80, 2.0))
        wall_s, compute_s, _ = trace.at(64)
        self.assertAlmostEqual(wall_s, 3.6)
        self.assertAlmostEqual(compute_s, 1.6)

    def test_without_stalls_a_boundary_lies_between_reports_in_proportion(self):
        wall_s, compute_s, _ = trace_of((1.0, 40, 1.0), (2.0, 80, 2.0)).at(50)
        self.assertAlmostEqual(wall_s, 1.25)
        self.assertAlmostEqual(compute_s, 1.25)

    def test_a_boundary_that_was_not_reached_is_an_error(self):
        with self.assertRaises(ValueError):
            trace_of((1.0, 40, 1.0), (2.0, 80, 2.0)).at(80)

    def test_utilization_is_computing_over_wall_time_of_the_worst_site_and_on_average(self):
        window = figures.Window(40, 80, 1)
        half = trace_of((1.0, 40, 1.0), (1.1, 44, 1.1), (3.0, 80, 2.0), (4.0, 120, 3.0))
        full = trace_of((1.0, 40, 1.0), (2.0, 80, 2.0), (3.0, 120, 3.0))
        result = figures.utilization([half, full], window)
        self.assertAlmostEqual(result["utilization_least"], 0.5)
        self.assertAlmostEqual(result["utilization_mean"], 0.75)


class PeakTest(unittest.TestCase):
    def test_even_sending_has_a_peak_of_one(self):
        self.assertAlmostEqual(figures.peak_to_mean([(i / 4, 100 * i) for i in range(40)], 0.5), 1)

    def test_a_burst_is_seen_by_windows_as_short_as_it(self):
        samples = [(i / 4, 0 if i < 20 else 1000) for i in range(41)]
        self.assertAlmostEqual(figures.peak_to_mean(samples, 0.25), 40)
        self.assertAlmostEqual(figures.peak_to_mean(samples, 1), 10)


if __name__ == "__main__":
    unittest.main()
