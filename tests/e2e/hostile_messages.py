"""Messages that no honest site sends: real bytes, made by protoc of text."""

import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
SITE = "mallory"  # the attackers' name where they have one


class Messages:
    """Files of messages in a folder. `manifest`: [(name, shape)] of the run's model."""

    def __init__(self, folder, run_id, manifest):
        self.folder, self.run_id = folder, run_id
        self.manifest = self.manifest_text(manifest)

    @staticmethod
    def manifest_text(tensors):
        return "".join(f'tensors {{ name: "{name}" kind: 1 layer: {layer} {" ".join(f"shape: {n}" for n in shape)} }} '
                       for layer, (name, shape) in enumerate(tensors))

    def encode(self, name, message_type, text):
        path = self.folder / f"{name}.{message_type}"
        if not path.exists():
            done = subprocess.run(["protoc", f"--proto_path={ROOT / 'proto'}", f"--encode=causeway.v1.{message_type}",
                                   "causeway/v1/coordinator.proto"], input=text.encode(), capture_output=True, check=True)
            path.write_bytes(done.stdout)
        return path

    def context(self, site=SITE):
        return f'context {{ protocol: 1 run_id: "{self.run_id}" site: "{site}" session: "s-{site}" num_shards: 1 world: 1 }}'

    def join(self, site=SITE, manifest=None, name="join", more=""):
        text = f"join {{ {self.context(site)} manifest {{ {manifest or self.manifest} }} codecs: 1 codecs: 4 {more} }}"
        return self.encode(f"{name}-{site}", "SiteMessage", text)

    def site(self, name, text):
        return self.encode(name, "SiteMessage", text)

    def question(self, name, message_type, more=""):
        return self.encode(name, message_type, f"{self.context()} {more}")
