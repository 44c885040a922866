"""The installed package in whole runs: its programs, and sites of numpy arrays beside packages that bring gRPC, protobuf
or abseil of their own. tests/deploy/wheel starts it.

    wheel_trial.py site COORDINATOR NAME PACKAGE…     one site, which imports these in this order
"""

import concurrent.futures
import os
import subprocess
import sys
import unittest

import numpy

from harness import BIN_DIR, DONE, EndToEndTest

STEPS, STEP = 40, 0.01


def use_grpcio():
    import grpc
    method = grpc.unary_unary_rpc_method_handler(lambda request, context: request + b" and back")
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Echo", {"Echo": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert channel.unary_unary("/Echo/Echo")(b"there", timeout=30) == b"there and back"
    server.stop(None).wait()


def use_protobuf():
    from google.protobuf.struct_pb2 import Struct
    message = Struct()
    message["tensor"] = "weight"
    assert Struct.FromString(message.SerializeToString()) == message


def use_torch():
    import torch
    weight = torch.ones(64, 64, requires_grad=True)
    (weight @ weight).sum().backward()
    assert weight.grad.sum() == 2 * 64**3


def use_tensorflow():
    import tensorflow
    weight = tensorflow.ones((64, 64))
    assert tensorflow.function(lambda w: tensorflow.reduce_sum(w @ w))(weight) == 64**3


def use_ray():
    import ray
    ray.init(num_cpus=1, include_dashboard=False)
    assert ray.get(ray.remote(lambda: 6 * 7).remote()) == 42
    ray.shutdown()


def use_causeway():
    import causeway
    causeway.library_version()


PACKAGES = {"causeway": ("causeway", use_causeway), "grpcio": ("grpc", use_grpcio),
            "protobuf": ("google.protobuf.message", use_protobuf), "torch": ("torch", use_torch),
            "tensorflow-cpu": ("tensorflow", use_tensorflow), "ray": ("ray", use_ray)}
BESIDE = [name for name in os.environ.get("WHEEL_BESIDE", "").split(",") if name]


def be_site(coordinator, name, *packages):
    for package in packages:
        module, use = PACKAGES[package]
        __import__(module)
        if package == "causeway":  # loads the library
            use()
    import causeway
    parameters = {"weight": numpy.zeros((10, 4), numpy.float32)}
    with causeway.Site(parameters, coordinator=coordinator, site=name) as site:
        while not site.over:
            parameters["weight"] += numpy.float32(STEP)
            site.after_step(tokens=512, loss=2.3)
            if site.step == STEPS // 2:
                for package in packages:
                    PACKAGES[package][1]()


class WheelTest(EndToEndTest):
    def check_run(self, *packages):
        """Two sites that take the same steps: with plain averaging, the run's parameters go the way of each."""
        run = self.new_run({
            "run_id": "wheel", "model": {"kind": "external"}, "run": {"steps": STEPS},
            "sync": {"sync_every": 10, "num_fragments": 1, "fragment_sync_delay": 0, "fragment_update_alpha": 0},
            "outer": {"optimizer": "sgd", "lr": 1}, "codec": {"up": "float32", "down": "float32"},
            "membership": {"min_sites": 2}})
        run.start_coordinator()
        for site in ("eu", "us"):
            run.workers[site] = run.program(f"site-{site}", sys.executable, __file__, "site", run.grpc, site, *packages)
        run.await_done(300)
        numpy.testing.assert_allclose(run.export()["weight"], STEPS * STEP, rtol=1e-5)
        run.stop_coordinator()

    def test_two_sites_finish_a_run(self):
        self.check_run("causeway")

    def test_two_sites_finish_a_run_beside_other_packages_imported_before_or_after(self):
        for package in BESIDE:
            for order in ((package, "causeway"), ("causeway", package)):
                with self.subTest(" before ".join(order)):
                    self.check_run(*order)
                    print(" before ".join(order), file=sys.stderr)

    def test_the_programs_say_their_version_and_give_exit_codes_on(self):
        for program in ("causeway-coordinator", "causewayctl"):
            said = subprocess.run([BIN_DIR / program, "--version"], capture_output=True, text=True)
            self.assertEqual((0, True), (said.returncode, "0.1" in said.stdout), said)
            self.assertEqual(2, subprocess.run([BIN_DIR / program, "--no_such_flag"], capture_output=True).returncode)


if __name__ == "__main__":
    if sys.argv[1:2] == ["site"]:
        be_site(*sys.argv[2:])
    else:
        unittest.main()
