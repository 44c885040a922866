"""The parts of a run on a card, in the order of what is missed most, each with a limit of seconds."""

import pathlib
import sys

from .runner import Command, Part

ROOT = pathlib.Path(__file__).resolve().parents[3]
BENCH = ROOT / "tests" / "bench"
PLACEMENTS = "cpu:late,cpu,1,2,3,auto,2:0.25"
OVERLAPPED = "causeway:cpu:0:overlap,causeway:cpu:0.3:overlap,causeway:cpu,causeway:cpu:0.3"
PEERS = f"resident,{OVERLAPPED},causeway:cpu:auto:overlap,deepspeed,deepspeed:ratio,torchao:float32,torchao,torch"  # in order
CLIPPED = f"resident,{OVERLAPPED},deepspeed"
LARGE = "causeway:cpu:auto:overlap,causeway:cpu:auto,causeway:cpu:0:overlap,deepspeed"
THREADS = [1, 2, 4, 8, 16]
KINDS_ON_ONE_CARD = ["ddp_of_two", "fsdp_of_two", "tensor_parallel_of_two", "pipeline_of_two"]


class Parts:
    """`tools`: folders and interpreters of this run (see tests/gpu/run)."""

    def __init__(self, tools):
        self.tools = tools

    def all(self):
        return [
            Part("machine", "what the machine is; the bus, each way and both", 60, self.machine),
            Part("offload", "places of the optimizer's state, one model that no card of 80 GB keeps whole", 200, self.offload),
            Part("offload_peers", "the host's memory and AdamW; the same state by PyTorch, torchao, DeepSpeed", 500, self.offload_peers),
            Part("train_124m", "124 M: micro-batches, PyTorch's best", 280, self.train_124m),
            Part("train_larger", "1.06 B beside PyTorch's best; 350 M, 774 M, 1.24 B", 150, self.train_larger),
            Part("profile", "one step, kernel by kernel", 60, self.profile),
            Part("sync", "what outer syncs cost a step, of the built-in trainer and of PyTorch", 90, self.sync),
            Part("ranks", "two NCCL ranks on one card: native, PyTorch's kinds, one that is killed", 150, self.ranks),
            Part("learn", "17 M or 5 M parameters, 20 tokens each: data parallel, two sites in float32 and at 1 bit", 560, self.learn),
            Part("gather", "values gathered from the host's memory; codecs", 40, self.gather),
            Part("kernels", "kernels against the CPU's bits; evaluation; kill -9 and resume", 120, self.kernels),
        ]

    # ---- Commands ----

    @property
    def on_card(self):
        return self.tools.device != "fake"

    def program(self, *below):
        path = self.tools.cuda.joinpath(*below)
        if not path.exists():
            raise ValueError(f"expected the program {path}, found none: build it, or name another --cuda=DIR or --pack=FILE")
        return path

    def bench(self, name, folder, *flags):
        return Command([sys.executable, BENCH / "run", name, f"--out={folder}", *flags])

    def gpu_train(self, folder, models, *flags, torch=True):
        models = models if self.on_card else ["tiny"]
        peer = [f"--python={self.tools.python}"] if torch and self.tools.python else []
        return self.bench("gpu_train", folder, f"--build={self.tools.cuda}", f"--device={self.tools.device}",
                          f"--models={','.join(models)}", "--resume", *peer, *flags)

    def background(self):
        """Begins with the run and is ended with it: no part waits for it."""
        if not (self.on_card and self.tools.python and self.tools.wheels):
            return []
        return [Command([sys.executable, BENCH / "run", "offload_peers", "--peers=build", "--model=tiny", f"--python={self.tools.python}",
                         f"--wheels={self.tools.wheels}", f"--build={self.tools.cuda}"])]

    # ---- Parts ----

    def machine(self, folder):
        facts = Command([sys.executable, "-m", "gpu_lib.machine"], {"PYTHONPATH": ROOT / "tests" / "gpu"})
        return [facts, Command([self.program("tests", "bench", "bench_run", "bench_run"), "offload", "--row=bus"])]

    def offload(self, folder):
        return [self.gpu_train(folder, ["4.6b"], f"--placements={PLACEMENTS}", "--steps=5", "--warm_up=2", "--limit=195", torch=False)]

    def offload_peers(self, folder):
        program = self.program("tests", "bench", "bench_run", "bench_run")
        size = ["--values=100000000", "--pairs=3"] if self.on_card else ["--values=100000", "--pairs=1"]
        rows = [Command([program, "offload", "--row=bandwidth", f"--threads={threads}", *size]) for threads in THREADS
                if threads <= self.tools.cores]
        if self.tools.python is None:
            return rows
        runs = [["--model=1.06b", f"--peers={PEERS}", "--limit=60"], ["--model=1.06b", f"--peers={CLIPPED}", "--clip=1", "--limit=60"],
                ["--model=4.6b", f"--peers={LARGE}", "--limit=150"]]
        if not self.on_card:
            runs = [["--model=tiny", "--peers=torch,causeway:cpu", "--steps=2", "--limit=40"]]
        wheels = [f"--wheels={self.tools.wheels}"] if self.tools.wheels else []
        return rows + [self.bench("offload_peers", folder, f"--python={self.tools.python}",
                                  f"--device={'cuda' if self.on_card else 'cpu'}", f"--build={self.tools.cuda}", "--resume",
                                  "--steps=4", *wheels, *run) for run in runs]

    def train_124m(self, folder):
        parts = "1,2,8" if self.on_card else "1,2"
        return [self.gpu_train(folder, ["124m"], f"--micro_batches={parts}", "--steps=20", "--torch_limit=60")]

    def train_larger(self, folder):
        ours = [self.gpu_train(folder, [model], "--steps=10", torch=False) for model in ("350m", "774m", "llama-3.2-1b")]
        return [self.gpu_train(folder, ["1.06b"], "--steps=10", "--torch_limit=40"), *(ours if self.on_card else [])]

    def profile(self, folder):
        return [self.bench("gpu_profile", folder, f"--build={self.tools.cuda}", f"--device={self.tools.device}",
                           f"--model={'124m' if self.on_card else 'tiny'}")]

    def sync(self, folder):
        size = ["--steps=75", "--ways=mapped,copied", "--loss_steps=60"] if self.on_card else ["--model=tiny", "--steps=105", "--ways=mapped", "--loss_steps=40"]
        commands = [self.bench("gpu_sync", folder, f"--build={self.tools.cuda}", f"--coordinators={self.tools.build}",
                               f"--device={self.tools.device}", *size)]
        if self.tools.python:
            size = (["--device=cuda", "--sizes=124", "--rows=16", "--length=512", "--steps=100"] if self.on_card
                    else ["--sizes=30", "--rows=1", "--length=16", "--steps=10"])
            commands.append(self.bench("torch_step", folder, f"--python={self.tools.python}", f"--build={self.tools.build}",
                                       "--quiet=true", *size))
        return commands

    def ranks(self, folder):
        flags = [f"--build={self.tools.cuda}", f"--coordinators={self.tools.build}"]
        if not self.on_card:
            return [Command([self.program("tests", "worker", "parallel", "parallel_test"), "--gtest_filter=*Nccl*"]),
                    self.bench("gpu_ranks", folder, "--device=fake", "--steps=20", *flags)]
        if self.tools.nccl is None:
            raise ValueError("expected a NCCL that takes two ranks on a card (2.32): --nccl=FILE of tests/gpu/pack --nccl=LIBRARY")
        environment = {"NCCL_MULTI_RANK_GPU_ENABLE": 1, "NCCL_NVLS_ENABLE": 0, "LD_PRELOAD": self.tools.nccl}
        commands = [Command([self.program("tests", "worker", "ranks", "cuda", "cuda_nccl_test")], environment),
                    Command([sys.executable, BENCH / "run", "gpu_ranks", f"--out={folder}", "--device=cuda:0", *flags], environment)]
        if self.tools.python:
            tests = [f"test_torch_ranks.KindsTest.test_{name}" for name in KINDS_ON_ONE_CARD]
            commands += [Command([ROOT / "tests" / "python" / "run", test], environment | {
                "CAUSEWAY_RANKS_DEVICE": "cuda:0", "PYTHON": self.tools.python, "CAUSEWAY_BIN_DIR": self.tools.build,
                "CAUSEWAY_LIBRARY": self.tools.cuda / "libcauseway.so"}) for test in tests]
        return commands

    def learn(self, folder):
        packed = self.tools.cuda / "text.txt"
        size = [] if self.on_card else ["--model=tiny", "--settings=float32,data_parallel,sparse"]
        if (self.tools.cuda / "commit").exists() and not packed.exists():  # a pack
            raise ValueError(f"expected a text at {packed}, found none: pack with tests/gpu/pack --only=learn")
        text = [f"--text={packed}"] if packed.exists() else []
        return [self.bench("gpu_learn", folder, f"--build={self.tools.cuda}", f"--coordinators={self.tools.build}",
                           f"--device={self.tools.device}", *size, *text)]

    def gather(self, folder):
        if not self.on_card:
            return [Command([self.program("tests", "worker", "device", "device_test"), "--gtest_filter=*Gather*"])]
        return [Command([self.program("tests", *name.split("/"))]) for name in ("worker/device/cuda/gather_speed", "codecs/cuda/cuda_speed")]

    def kernels(self, folder):
        if self.on_card:
            names = ["codecs/cuda/codecs_cuda_test", "offload/cuda/offload_cuda_test", "worker/device/cuda/cuda_backend_test",
                     "worker/ranks/cuda/cuda_nccl_test"]
            commands = [Command([self.program("tests", *name.split("/"))]) for name in names]
        else:
            commands = [Command([self.program("tests", "worker", "device", "device_test"), "--gtest_filter=Kernels*"]),
                        Command([self.program("tests", "worker", "parallel", "parallel_test"), "--gtest_filter=LlamaTrainerOnADevice*"])]
        commands.append(self.bench("gpu_resume", folder, f"--build={self.tools.cuda}", f"--coordinators={self.tools.build}",
                                   f"--device={self.tools.device}", *([] if self.on_card else ["--placements=cpu", "--steps=40"])))
        if self.on_card and self.tools.python:
            commands.append(Command([ROOT / "tests" / "python" / "run", "test_torch_device", "test_torch_offload.GpuTest",
                                     "test_torch_overlap.GpuTest"], {
                "PYTHON": self.tools.python, "CAUSEWAY_BIN_DIR": self.tools.build,
                "CAUSEWAY_LIBRARY": self.tools.cuda / "libcauseway.so"}))
        return commands
