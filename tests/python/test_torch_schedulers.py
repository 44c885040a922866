"""Learning rates of sites that enter a run late, and schedulers that cannot follow it."""

import importlib.util
import sys
import types
import unittest.mock

from torch_site import TOKENS, FakeSiteTest, causeway, torch, unittest

lr = torch.optim.lr_scheduler


class SchedulerTest(FakeSiteTest):
    def rate_after(self, make, steps, stepped=lambda step: True):
        """The rate of a site that has been there from the beginning."""
        optimizer = self.sgd()
        scheduler = make(optimizer)
        for step in range(1, steps + 1):
            optimizer.step()
            if stepped(step):
                scheduler.step()
        return optimizer.param_groups[0]["lr"]

    def rate_of_joiner(self, make, step, wrap=lambda scheduler: scheduler):
        optimizer = self.sgd()
        self.fake.next_step = step
        with self.diloco(optimizer=optimizer, schedulers=[wrap(make(optimizer))]):
            self.fake.next_step = None
            return optimizer.param_groups[0]["lr"]

    def test_one_that_needs_a_metric_stays_where_it_is_and_that_is_said_once(self):
        optimizer = self.sgd()
        scheduler = lr.ReduceLROnPlateau(optimizer, patience=0)
        self.fake.next_step = 17
        with self.assertLogs("causeway", "WARNING") as logged, self.diloco(optimizer=optimizer, schedulers=[scheduler]) as diloco:
            self.fake.next_step, self.fake.progress["stays"] = 30, 2  # it joins anew
            self.model.loss(TOKENS).backward()
            optimizer.step()
            self.model.loss(TOKENS)
            self.assertEqual(30, diloco.step)
            self.assertEqual(0.1, optimizer.param_groups[0]["lr"])
        self.assertEqual(1, sum("ReduceLROnPlateau stays where it is" in line for line in logged.output), logged.output)

    def test_one_of_a_program_that_needs_a_metric_stays_too(self):
        class Needs:
            def __init__(self, optimizer):
                self.optimizer, self.last_epoch = optimizer, 0

            def step(self, metric):
                raise AssertionError

            def state_dict(self):
                return {}
        self.assertEqual(0.1, self.rate_of_joiner(Needs, 9))

    def test_chained_schedulers_follow(self):
        def make(optimizer):
            return lr.ChainedScheduler([lr.ConstantLR(optimizer, 0.1, 4), lr.ExponentialLR(optimizer, 0.9)])
        self.assertEqual(self.rate_after(make, 17), self.rate_of_joiner(make, 17))

    def test_one_that_ends_before_the_runs_step_is_refused_with_both_numbers(self):
        def make(optimizer):
            return lr.OneCycleLR(optimizer, 0.1, total_steps=10)
        self.assertEqual(self.rate_after(make, 9), self.rate_of_joiner(make, 9))
        with self.assertRaisesRegex(causeway.ConfigError, "OneCycleLR: expected total_steps of at least 11, as the run is at step 11, got 10"):
            self.rate_of_joiner(make, 11)

    def test_one_that_is_stepped_once_an_epoch_follows_where_the_script_says_so(self):
        def make(optimizer):
            return lr.StepLR(optimizer, 2, 0.5)
        self.assertEqual(self.rate_after(make, 17, stepped=lambda step: step % 4 == 0),
                         self.rate_of_joiner(make, 17, lambda scheduler: (scheduler, 4)))

    def test_one_alone_needs_no_list(self):
        optimizer = self.sgd()
        scheduler = lr.ExponentialLR(optimizer, 0.5)
        self.fake.next_step = 2
        with self.diloco(optimizer=optimizer, schedulers=scheduler):
            self.assertEqual(0.025, optimizer.param_groups[0]["lr"])

    def test_a_count_that_is_none_is_refused(self):
        for every in (0, 1.5, "4"):
            optimizer = self.sgd()
            with self.assertRaisesRegex(causeway.ConfigError, "schedulers: expected .*inner steps between"):
                self.diloco(optimizer=optimizer, schedulers=[(lr.StepLR(optimizer, 2), every)])

    def test_one_that_does_not_follow_as_said_is_named_once(self):
        optimizer = self.sgd()
        scheduler = lr.StepLR(optimizer, 2, 0.5)
        with self.assertLogs("causeway", "WARNING") as logged, self.diloco(optimizer=optimizer, schedulers=[scheduler]):
            for step in range(1, 13):
                self.model.loss(TOKENS).backward()
                optimizer.step()
                if step % 6 == 0:
                    scheduler.step()
        self.assertEqual(1, sum("StepLR: expected to be stepped once in 1 inner steps, got 0" in line for line in logged.output),
                         logged.output)

    def test_one_that_follows_is_not_named(self):
        for every in (1, 3):
            optimizer = self.sgd()
            scheduler = lr.StepLR(optimizer, 2, 0.5)
            with self.assertNoLogs("causeway", "WARNING"), self.diloco(optimizer=optimizer, schedulers=[(scheduler, every)]):
                for step in range(1, 13):
                    self.model.loss(TOKENS).backward()
                    optimizer.step()
                    if step % every == 0:
                        scheduler.step()

    @unittest.skipUnless(importlib.util.find_spec("accelerate"), "accelerate is not installed")
    def test_accelerates_wrapper_steps_once_for_each_process(self):
        from accelerate.scheduler import AcceleratedScheduler

        def make(optimizer):
            return lr.LambdaLR(optimizer, lambda t: 1 / (1 + t))
        state = types.SimpleNamespace(AcceleratorState=lambda: types.SimpleNamespace(num_processes=2))
        with unittest.mock.patch.dict(sys.modules, {"accelerate.state": state}):
            for split, per_step, steps in ((False, True, 2), (True, True, 1), (False, False, 1)):
                def wrap(scheduler):
                    return AcceleratedScheduler(scheduler, scheduler.optimizer, step_with_optimizer=per_step, split_batches=split)
                self.assertAlmostEqual(0.1 / (1 + 17 * steps), self.rate_of_joiner(make, 17, wrap), (split, per_step))
                self.assertAlmostEqual(0.1 / (1 + 17 // 4 * steps), self.rate_of_joiner(make, 17, lambda s: (wrap(s), 4)))


if __name__ == "__main__":
    unittest.main()
