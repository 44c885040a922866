"""deploy/'s Dockerfiles, compose files and Kubernetes manifests (units: units_test.py): whether all that they name is there.

This cannot see whether a cluster's API server takes the manifests, and whether an engine runs them; for that there
is tests/deploy/compose_lab.
"""

import fnmatch
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import yaml

import deploy_files
from deploy_files import DEPLOY, PROGRAMS, ROOT, SITE, TORCH_SITE, compose, kubernetes, pod_template

BINARIES = os.environ.get("CAUSEWAY_BIN_DIR")
PORTS = {"listen": 7077, "http": 7078, "health": 7079}  # of the coordinator, everywhere
HTTP_PATHS = {"/healthz", "/readyz"}  # live_test.py asks the real coordinator for these
RENDEZVOUS_PORT = 29500  # of rank 0, for ranks in several pods


def help_flags(program):
    text = subprocess.run([pathlib.Path(BINARIES) / program, "--helpfull"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^  --(\w+)", text, re.MULTILINE))


@unittest.skipUnless(BINARIES, "CAUSEWAY_BIN_DIR names no build")
class Flags(unittest.TestCase):
    def test_every_flag_in_deploy_is_one_of_its_program(self):
        known = {program: help_flags(program) for program in PROGRAMS}
        commands = deploy_files.commands()
        self.assertGreaterEqual(len(commands), 10)
        for command in commands:
            with self.subTest(where=command.where):
                self.assertLessEqual(set(command.flags()), known[command.program] | {"help", "version"})

    def test_scripts_and_texts_name_no_flag_that_is_gone(self):
        known = set().union(*(help_flags(program) for program in PROGRAMS))
        for path in [DEPLOY / "compose.yaml", DEPLOY / "worker.compose.yaml", *DEPLOY.glob("systemd/*")]:
            ours = set(re.findall(r"--([a-z]+_[a-z_]+)=", path.read_text()))
            self.assertLessEqual(ours, known, path.name)


class Images(unittest.TestCase):
    def setUp(self):
        self.files = deploy_files.dockerfiles()

    def test_programs_are_compiled_by_the_same_lines_so_that_the_second_image_compiles_nothing(self):
        builds = [dict(self.files[f"{name}.Dockerfile"].stages())["build"] for name in ("coordinator", "worker")]
        self.assertEqual(*builds)

    def test_containers_are_not_root_have_a_health_check_and_get_signals_themselves(self):
        for name, file in self.files.items():
            with self.subTest(name):
                words = [word for word, _ in file.stages()[-1][1]]
                self.assertIn("USER", words)
                self.assertNotIn(dict(file.stages()[-1][1])["USER"], ("root", "0"))
                self.assertIn("HEALTHCHECK", words)
                self.assertIsInstance(file.last("ENTRYPOINT"), list)  # a shell's form would keep SIGTERM
                self.assertEqual(("ARG", "BASE=debian:12-slim"), file.instructions[0])

    def test_what_is_copied_is_there_and_in_the_build_context(self):
        lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
        kept = [line[1:] for line in lines if line.startswith("!")]
        self.assertEqual("*", lines[0])
        for path in kept:
            self.assertTrue((ROOT / path).exists(), path)
        for name, file in self.files.items():
            for word, rest in file.instructions:
                if word != "COPY" or "--from" in rest or rest.startswith(". "):
                    continue
                for source in rest.split()[:-1]:
                    self.assertTrue((ROOT / source).exists(), f"{name}: {source}")
                    self.assertTrue(any(source == path or source.startswith(path + "/") for path in kept), source)

    def test_the_context_has_every_folder_that_is_built_and_no_keys(self):
        folders = re.search(r'-DFOLDERS="([^"]*)"', (DEPLOY / "coordinator.Dockerfile").read_text())[1].split(";")
        all_folders = re.search(r"set\(FOLDERS ([^)]*)\)", (ROOT / "CMakeLists.txt").read_text())[1].split()
        self.assertEqual(set(all_folders) - {"tests", "deploy"}, set(folders))
        kept = (ROOT / ".dockerignore").read_text().splitlines()
        included = re.findall(r"^include\((\S+\.cmake)\)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)
        self.assertTrue(included)
        for path in folders + included:
            self.assertIn(f"!{path}", kept)


class Compose(unittest.TestCase):
    def files(self):
        return [(name, compose(name, variables)) for name, variables in
                (("compose.yaml", {}), ("worker.compose.yaml", SITE), ("torch.compose.yaml", TORCH_SITE))]

    def mounts(self, service):
        return [mount.split(":") for mount in service.get("volumes", [])]

    def test_services_volumes_and_files_that_are_named_exist(self):
        for name, file in self.files():
            volumes = set(file.get("volumes") or {})
            used = set()
            for service, body in file["services"].items():
                with self.subTest(file=name, service=service):
                    self.assertLessEqual(set(body.get("depends_on", {})), set(file["services"]))
                    for source, target, *_ in self.mounts(body):
                        self.assertTrue(target.startswith("/"), target)
                        if source.startswith("."):
                            self.assertTrue((DEPLOY / source).exists(), source)
                        elif not source.startswith("/"):
                            self.assertIn(source, volumes)
                            used.add(source)
                    if "build" in body:
                        self.assertTrue((DEPLOY / body["build"]["context"] / body["build"]["dockerfile"]).exists())
                    if "target" in body.get("build", {}):
                        stages = dict(deploy_files.Dockerfile(ROOT / body["build"]["dockerfile"]).stages())
                        self.assertIn(body["build"]["target"], stages)
            self.assertEqual(volumes, used)

    def test_a_service_that_others_wait_for_starts_with_them(self):
        services = compose("compose.yaml", {})["services"]
        for name, body in services.items():
            for other in body.get("depends_on", {}):
                needed = set(services[other].get("profiles", []))
                self.assertTrue(not needed or set(body.get("profiles", [])) <= needed, f"{name} waits for {other}")

    def test_files_that_commands_name_are_on_a_mount_and_written_by_somebody(self):
        for name, file in self.files():
            for service, body in file["services"].items():
                words = list(map(str, deploy_files.compose_command(body)))
                targets = [mount[1] for mount in self.mounts(body)]
                for path in [word.partition("=")[2] for word in words if re.match(r"--\w+=/", word)]:
                    with self.subTest(service=service, path=path):
                        self.assertTrue(any(path == target or path.startswith(target.rstrip("/") + "/")
                                            for target in targets))

    def named_by_the_comment(self, file):
        lines = re.search(r"<<TEXT\n(.*?)#   TEXT\n", (DEPLOY / file).read_text(), re.DOTALL)[1].splitlines()
        # A word behind the value would be part of it.
        return dict(re.fullmatch(r"#   (\w+)=(\S+)(?: +# .*)?", line).groups() for line in lines)

    def test_the_site_file_that_the_comment_writes_sets_what_is_asked_for_and_nothing_behind_it(self):
        named = self.named_by_the_comment("worker.compose.yaml")
        self.assertEqual({*SITE, "DATA_FILE", "RANKS"}, set(named))
        command = " ".join(compose("worker.compose.yaml", named)["services"]["worker"]["command"])
        self.assertIn(f"--data=/data/{named['DATA_FILE']} ", command)
        named = self.named_by_the_comment("torch.compose.yaml")
        self.assertEqual(set(TORCH_SITE), set(named))
        command = " ".join(compose("torch.compose.yaml", named)["services"]["torch"]["command"])
        self.assertIn(f"--nproc_per_node={named['RANKS']} ", command)
        self.assertTrue(command.endswith(f"{named['SCRIPT']} /data"), command)

    def test_the_certificates_job_makes_every_file_that_others_read(self):
        services = compose("compose.yaml", {})["services"]
        job = {source: target for source, target, *_ in self.mounts(services["certificates"])}
        script = (DEPLOY / "compose" / "certificates").read_text().replace("\\\n", "")
        for service, body in services.items():
            words = list(map(str, deploy_files.compose_command(body)))
            if service == "certificates" or not any(word.startswith("--tls_ca") for word in words):
                continue
            volume, folder = next(mount[:2] for mount in self.mounts(body) if mount[0].endswith("-certs"))
            given = re.findall(rf"give {pathlib.Path(job[volume]).name} (.*?)(?:;|$)", script, re.MULTILINE)
            self.assertTrue(given, service)
            names = given[0].replace('"$site', service).replace('"', "").split()
            read = {pathlib.Path(word.partition("=")[2]).name for word in words if f"={folder}/" in word}
            self.assertTrue(read)
            self.assertLessEqual(read, set(names), service)

    def test_the_demo_trains_what_the_quickstart_trains(self):
        ours = yaml.safe_load((DEPLOY / "compose" / "run.yaml").read_text())
        text = (DEPLOY / "quickstart.yaml").read_text()
        theirs = yaml.safe_load(re.sub(r"\$(\w+)", lambda match: {"vocab_size": "256", "schedule": "constant", "micro_batches": "1"}.get(
            match[1], "3"), text))
        for key in ("model", "inner", "sync", "outer", "codec", "membership"):
            self.assertEqual(theirs[key], ours[key], key)

    def test_published_ports_are_those_that_the_containers_listen_on(self):
        services = compose("compose.yaml", {})["services"]
        published = {mapping.split(":")[-1]: mapping for mapping in services["coordinator"]["ports"]}
        self.assertEqual({"7077", "7078"}, set(published))
        self.assertEqual("7077:7077", published["7077"])  # podman listens on 0.0.0.0:7077 and passes nothing on
        self.assertTrue(published["7078"].startswith("127.0.0.1:"))  # it asks for no password
        for name in ("prometheus", "grafana"):
            self.assertTrue(services[name]["ports"][0].startswith("127.0.0.1:"), name)


class Gpus(unittest.TestCase):
    """A site that is given GPUs trains on them or ends and says why, instead of training on CPUs beside them."""

    def setUp(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        worker = folder / "causeway-worker"
        worker.write_text('#!/bin/sh\necho "trains with $*"\n')
        worker.chmod(0o755)
        self.environment = {"PATH": f"{folder}:{os.environ['PATH']}"}

    def ended(self, words, **environment):
        return subprocess.run(words, env=self.environment | environment, capture_output=True, text=True)

    def test_the_gpu_profile_of_compose_asks_for_gpus_and_is_not_started_again_without_one(self):
        services = compose("worker.compose.yaml", SITE)["services"]
        service = services["worker-gpu"]
        self.assertEqual(["gpu"], service["profiles"])
        first, device, *rest = deploy_files.compose_command(service)
        self.assertEqual(("causeway-worker", "--device=cuda"), (first, device))
        self.assertEqual(deploy_files.compose_command(services["worker"])[1:], rest)
        self.assertEqual("no", service["restart"])  # it would end in the same way again
        [devices] = service["deploy"]["resources"]["reservations"]["devices"]
        self.assertEqual(("nvidia", "all", ["gpu"]), (devices["driver"], devices["count"], devices["capabilities"]))
        self.assertEqual("deploy/worker-gpu.Dockerfile", service["build"]["dockerfile"])

    def test_a_pod_that_is_given_gpus_asks_for_them(self):
        for name in ("worker.yaml", "worker-ranks.yaml"):
            [container] = [pod_template(item)["spec"]["containers"][0] for file, item in kubernetes()
                           if file == name and pod_template(item)]
            words = container["command"] + container["args"]
            args = " ".join(container["args"])
            done = self.ended(words, NVIDIA_VISIBLE_DEVICES="GPU-7d2a")
            self.assertEqual((0, f"trains with --device=cuda {args}\n", ""), (done.returncode, done.stdout, done.stderr))
            if list(pathlib.Path("/dev").glob("nvidia[0-9]*")):
                continue  # a pod without a GPU would not see this machine's
            for none in ({}, {"NVIDIA_VISIBLE_DEVICES": "void"}, {"NVIDIA_VISIBLE_DEVICES": "none"}):
                done = self.ended(words, **none)
                self.assertEqual((0, f"trains with {args}\n", ""), (done.returncode, done.stdout, done.stderr))

    def test_the_image_with_cuda_is_the_other_ones_with_its_libraries_and_compiler(self):
        images = {name: file.stages()[-1][1] for name, file in deploy_files.dockerfiles().items() if "worker" in name}
        plain, gpu = images["worker.Dockerfile"], images["worker-gpu.Dockerfile"]
        beside = [line for line in gpu if line not in plain]
        self.assertEqual(["COPY", "ENV", "ENTRYPOINT"], [word for word, _ in beside])
        self.assertEqual('["causeway-worker", "--device=cuda"]', beside[-1][1])


class Addresses(unittest.TestCase):
    def test_coordinators_listen_on_their_ports_and_workers_dial_the_first(self):
        for command in deploy_files.commands():
            flags = command.flags()
            with self.subTest(where=command.where):
                for flag, port in PORTS.items():
                    if flag in flags and not flags[flag].startswith("$"):
                        self.assertEqual(str(port), flags[flag].rpartition(":")[2])
                if "coordinator" in flags and not flags["coordinator"].startswith("$"):
                    self.assertEqual("7077", flags["coordinator"].rpartition(":")[2])


# Sites whose ranks are in several pods: the flags of rank, world and of where rank 0 is met.
RANKED_SITES = {"causeway-lyon": {"rank": "rank", "world": "world", "meet": ["rendezvous"]},
                "causeway-nice": {"rank": "node_rank", "world": "nnodes", "meet": ["master_addr", "master_port"]}}


class Kubernetes(unittest.TestCase):
    def setUp(self):
        self.objects = kubernetes()
        self.named = {(item["kind"], item["metadata"]["name"]) for _, item in self.objects}

    def pods(self):
        return [(item, pod_template(item)) for _, item in self.objects if pod_template(item)]

    def test_selectors_match_the_labels_of_exactly_one_kind_of_pod(self):
        for _, item in self.objects:
            selector = item.get("spec", {}).get("selector")
            if selector is None:
                continue
            labels = selector.get("matchLabels", selector)
            matched = [owner["metadata"]["name"] for owner, pod in self.pods()
                       if labels.items() <= pod["metadata"]["labels"].items()]
            name = item["metadata"]["name"]
            expected = name if name in {*RANKED_SITES, "causeway-standby"} else "causeway-coordinator"
            self.assertEqual([expected], matched, name)

    def test_ports_of_services_and_probes_are_ports_of_the_container_that_listens_there(self):
        for owner, pod in self.pods():
            for container in pod["spec"]["containers"]:
                ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
                self.assertLessEqual(set(ports.values()), {*PORTS.values(), RENDEZVOUS_PORT})
                for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                    if "httpGet" in container.get(probe, {}):
                        self.assertIn(container[probe]["httpGet"]["port"], ports)
                        self.assertIn(container[probe]["httpGet"]["path"], HTTP_PATHS)
                if owner["kind"] == "StatefulSet":
                    self.assertEqual({"grpc": 7077, "http": 7078, "health": 7079}, ports)
        for _, item in self.objects:
            for port in item["spec"]["ports"] if item["kind"] == "Service" else []:
                self.assertEqual({"grpc": 7077, "http": 7078, "rendezvous": RENDEZVOUS_PORT}[port["targetPort"]],
                                 port["port"])

    def test_ranks_in_several_pods_meet_at_the_port_and_name_of_the_first(self):
        for name, flags_of in RANKED_SITES.items():
            [job] = [item for _, item in self.objects if item["kind"] == "Job" and item["metadata"]["name"] == name]
            self.assertEqual("Indexed", job["spec"]["completionMode"])
            [container] = pod_template(job)["spec"]["containers"]
            flags = dict(argument.removeprefix("--").split("=", 1) for argument in container["args"] if "=" in argument)
            [variable] = [env["name"] for env in container["env"] if "valueFrom" in env]
            self.assertEqual(f"$({variable})", flags[flags_of["rank"]])
            self.assertEqual({flags[flags_of["world"]]}, {str(job["spec"][key]) for key in ("completions", "parallelism")})
            first = f"{name}-0.{pod_template(job)['spec']['subdomain']}:{RENDEZVOUS_PORT}"
            self.assertEqual(first, ":".join(flags[flag] for flag in flags_of["meet"]))

    def test_pytorch_sites_get_the_variables_that_the_package_reads(self):
        text = (ROOT / "python" / "causeway" / "_options.py").read_text()
        read = set(re.findall(r'"(CAUSEWAY_\w+)"', text)) - {"CAUSEWAY_TRY"}  # causeway.try's own
        self.assertGreaterEqual(len(read), 6)
        [job] = [item for name, item in self.objects if name == "torch-ranks.yaml" and item["kind"] == "Job"]
        self.assertEqual(read, {env["name"] for env in pod_template(job)["spec"]["containers"][0]["env"] if "value" in env})
        service = compose("torch.compose.yaml", TORCH_SITE)["services"]["torch"]
        self.assertEqual(read, {name for name in service["environment"] if name.startswith("CAUSEWAY_")})
        for name, value in service["environment"].items():
            if value.startswith("/"):
                self.assertTrue(any(value.startswith(mount.split(":")[1] + "/") for mount in service["volumes"]), name)

    def test_volumes_resolve_and_hold_what_the_arguments_name(self):
        for owner, pod in self.pods():
            claims = {claim["metadata"]["name"] for claim in owner["spec"].get("volumeClaimTemplates", [])}
            volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
            for container in pod["spec"]["containers"]:
                mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
                self.assertEqual(set(mounted.values()), set(volumes) | claims, owner["metadata"]["name"])
                for argument in container["args"]:
                    path = argument.partition("=")[2]
                    if path.startswith("/"):
                        self.assertTrue(any(path == target or path.startswith(target + "/") for target in mounted), path)
                command = container.get("livenessProbe", {}).get("exec", {}).get("command", [])
                if command:
                    self.assertTrue((DEPLOY / "health" / command[0]).exists())
            for volume in volumes.values():
                if "configMap" in volume:
                    self.assertIn(("ConfigMap", volume["configMap"]["name"]), self.named)
                if "persistentVolumeClaim" in volume:
                    self.assertIn(("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]), self.named)

    def test_the_secrets_that_the_comments_make_have_every_file_that_is_read(self):
        for path in (DEPLOY / "k8s").glob("*.yaml"):
            text = path.read_text()
            comment = " ".join(line[1:].strip(" \\") for line in text.splitlines() if line.startswith("#"))
            made = {name: set(re.findall(r"--from-(?:file|literal)=([^=]+)=", files)) for name, files in re.findall(
                r'create secret generic (\S+)((?: --from-(?:file=\S+|literal=[^"]+"[^"]*"))+)', comment)}
            used = re.findall(r"secretName: ([\w-]+)", text)
            if path.name == "standby.yaml":  # coordinator.yaml's, whose arguments it has
                continue
            self.assertEqual(set(used), set(made), path.name)
            read = set(re.findall(r"[= ]/etc/causeway/certs/([\w.-]+)", text))
            self.assertEqual(read, set().union(*made.values()), path.name)

    @unittest.skipUnless(BINARIES, "CAUSEWAY_BIN_DIR names no build")
    def test_configs_are_good_ones(self):
        texts = [item["data"]["run.yaml"] for _, item in self.objects if item["kind"] == "ConfigMap"]
        texts.append((DEPLOY / "compose" / "run.yaml").read_text())
        with tempfile.TemporaryDirectory() as folder:
            for text in texts:
                path = pathlib.Path(folder) / "run.yaml"
                path.write_text(text)
                done = subprocess.run([pathlib.Path(BINARIES) / "causewayctl", "config-check", path], capture_output=True,
                                      text=True)
                self.assertEqual(0, done.returncode, done.stderr)

    def test_schemas(self):
        try:
            import kubernetes_validate
        except ImportError:
            self.skipTest("the Python package kubernetes-validate is not installed")
        for _, item in self.objects:
            kubernetes_validate.validate(item, kubernetes_validate.latest_version(), strict=True)

    def test_pods_are_not_root_and_write_nowhere_but_on_volumes(self):
        for owner, pod in self.pods():
            self.assertTrue(pod["spec"]["securityContext"]["runAsNonRoot"])
            users = re.findall(r"USER (\d+)", (DEPLOY / "coordinator.Dockerfile").read_text())
            self.assertEqual([str(pod["spec"]["securityContext"]["runAsUser"])], users)
            for container in pod["spec"]["containers"]:
                self.assertTrue(container["securityContext"]["readOnlyRootFilesystem"], owner["metadata"]["name"])


class Pinned(unittest.TestCase):
    def test_images_of_others_have_digests_and_wheels_have_hashes(self):
        text = "".join(path.read_text() for path in DEPLOY.glob("*compose.yaml"))
        images = re.findall(r"image: (?:\$\{\w+:-)?([\w./-]+(?::[\w.]+)?(?:@sha256:[0-9a-f]{64})?)", text)
        foreign = [image for image in images if "/" in image]
        self.assertEqual(len(foreign), 2, images)
        self.assertEqual([image for image in foreign if "@sha256:" not in image], [])
        wheels = [line for line in (DEPLOY / "cuda_wheels.txt").read_text().splitlines() if line and line[0] != "#"]
        for wheel in wheels:
            self.assertRegex(wheel, r"^[a-z0-9-]+==[0-9.]+( --hash=sha256:[0-9a-f]{64})+$")


class Rest(unittest.TestCase):
    def test_nothing_here_is_left_unchecked(self):
        known = ["*.Dockerfile", "compose.yaml", "*.compose.yaml", "compose/*", "k8s/*.yaml", "systemd/*.service",
                 "systemd/gpu.conf",  # a drop-in for machines with a GPU
                 "health/*", "prometheus/*.yml", "grafana/*", "certs", "install_packages", "packages*.txt", "quickstart*", "levels.yaml",
                 "get_cudnn_frontend", "cuda_wheels.txt",
                 "runtime_packages", "run.yaml", ".gitignore", "wheel",  # tests/deploy/wheel, on demand
                 "CMakeLists.txt", "deb", "debian/*",  # install_test.py; tests/deploy/deb, on demand
                 "completion/*"]
        for path in subprocess.run(["git", "ls-files", "."], cwd=DEPLOY, capture_output=True, text=True).stdout.split():
            self.assertTrue(any(fnmatch.fnmatch(path, pattern) for pattern in known), path)


if __name__ == "__main__":
    unittest.main()
