"""Real runs on one machine for benchmarks of a GPU: a coordinator, and sites that may share the card."""

import json
import pathlib
import subprocess
import tempfile
import time

from ingest_lib import processes

NAMES = {"hidden": "hidden_size", "intermediate": "intermediate_size", "layers": "num_hidden_layers", "vocab": "vocab_size",
         "heads": "num_attention_heads", "kv_heads": "num_key_value_heads", "sequence": "max_position_embeddings"}


def model_of(shape):
    """`model` of run.yaml for a shape of gpu_models."""
    return {"kind": "llama"} | {NAMES[key]: value for key, value in shape.items() if key in NAMES}


def run(options, config, data, sites, *flags, limit_s=None):
    """The lines of the first site's metrics, and the status at the end. TimeoutError after limit_s."""
    ends = time.monotonic() + limit_s if limit_s else None
    with tempfile.TemporaryDirectory(prefix="causeway-sync-") as name:
        folder = pathlib.Path(name)
        (folder / "run.yaml").write_text(config)
        coordinator = processes.Coordinator(options.coordinators, folder / "run.yaml", folder / "state", folder / "log")
        workers = []
        try:
            address = coordinator.await_address()
            for site in range(sites):
                with open(folder / f"{site}.log", "wb") as log:
                    workers.append(subprocess.Popen(
                        [options.build / ("causeway-worker-fake" if options.device == "fake" else "causeway-worker"), f"--coordinator={address}", f"--site=site{site}", f"--data={data}",
                         f"--metrics_file={folder}/{site}.jsonl", "--metrics_every_s=0", *flags], stdout=log, stderr=log, preexec_fn=processes.ends_with_us))
            for site, worker in enumerate(workers):
                try:
                    status = worker.wait(max(0, ends - time.monotonic()) if ends else None)
                except subprocess.TimeoutExpired:
                    raise TimeoutError(f"not over after {limit_s:.0f} s") from None
                if status != 0:
                    raise SystemExit(f"site {site}: {(folder / f'{site}.log').read_text()[-2000:]}")
            said = [line for line in (folder / "0.log").read_text().splitlines() if "contributions" in line]
            return [json.loads(line) for line in (folder / "0.jsonl").read_text().splitlines()], coordinator.status(), said
        finally:
            for worker in workers:
                worker.kill()
            coordinator.kill()
