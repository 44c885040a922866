"""A coordinator whose machine loses power goes on from what its disk has kept, and from what its sites hold."""

import os
import pathlib
import random
import shutil
import signal
import sqlite3
import time
import unittest

from harness import BIN_DIR, DigestBook, EndToEndTest, eventually, synthetic
from test_shards import SITES, ShardedRun, config_of

PAGE = 4096
MODELS = ("synced", "pages", "sizes")


class Disk:
    """All that a state directory's disk would keep: files by inode, names by folder."""

    def __init__(self, state_dir, mirror):
        self.state_dir, self.mirror = state_dir, mirror

    def environment(self, library):
        return {"LD_PRELOAD": str(library), "CAUSEWAY_WATCHED": str(self.state_dir), "CAUSEWAY_SYNCED": str(self.mirror)}

    def begin(self):
        """All that is there counts as synced."""
        shutil.rmtree(self.mirror, ignore_errors=True)
        (self.mirror / "files").mkdir(parents=True)
        (self.mirror / "names").mkdir()
        if not self.state_dir.exists():
            return
        for folder, _, files in os.walk(self.state_dir):
            lines = []
            for name in files:
                path = pathlib.Path(folder) / name
                lines.append(f"{path.stat().st_ino} {name}\n")
                shutil.copyfile(path, self.mirror / "files" / str(path.stat().st_ino))
            self._names(folder).write_text("".join(lines))

    def lose_power(self, model, chance):
        for folder, _, files in os.walk(self.state_dir):
            listed = self._names(folder)
            names = dict(line.split(" ", 1)[::-1] for line in listed.read_text().splitlines()) if listed.exists() else {}
            for name in files:
                path = pathlib.Path(folder) / name
                synced = self.mirror / "files" / str(path.stat().st_ino)
                if names.get(name) != str(path.stat().st_ino):
                    path.unlink()
                elif not synced.exists():
                    path.write_bytes(b"")
                else:
                    path.write_bytes(self._kept(model, chance, path.read_bytes(), synced.read_bytes()))

    def _names(self, folder):
        inside = os.path.relpath(folder, self.state_dir)
        return self.mirror / "names" / ("%" + inside.replace("/", "%"))

    @staticmethod
    def _kept(model, chance, written, synced):
        if model == "synced" or written == synced:
            return synced
        if model == "sizes":
            return written[:len(synced)]
        kept = bytearray(synced + bytes(max(0, len(written) - len(synced))))
        for page in range(0, len(written), PAGE):
            if chance.random() < 0.5:
                kept[page:page + PAGE] = written[page:page + PAGE]
        return bytes(kept) if chance.random() < 0.5 else bytes(kept[:len(synced)])


def power_loss_config(journal, sites):
    return synthetic(sites, [[1000], [257], [5000]],
                     model={"step_ms": 1, "init": "seeded", "gradient": {"kind": "noise"}},
                     sync={"sync_every": 6, "num_fragments": 3, "fragment_sync_delay": 1, "fragment_update_alpha": 0.5},
                     membership={"lease_ms": 20000}, checkpoint={"every_rounds": 20}, durability={"journal": journal})


class PowerLoss(EndToEndTest):
    def start(self, journal, count=3):
        sites = {f"s{i}": 0.25 * (i + 1) for i in range(count)}
        run = self.new_run(power_loss_config(journal, sites))
        self.disk = Disk(run.state_dir, run.folder / "synced")
        self.start_coordinator(run)
        run.start_workers(*sites)
        run.await_rounds(3)
        return run, list(sites)

    def start_coordinator(self, run):
        self.disk.begin()
        library = BIN_DIR / "libcauseway_synced_files.so"
        run.start_coordinator(environment=self.disk.environment(library))

    def agree(self, run, sites, beyond):
        """In one look: versions that were made again have other digests."""
        book = DigestBook()
        try:
            fragments = range(len(book.note_run(run)["fragments"]))
        except (sqlite3.OperationalError, TypeError):
            return False  # between two lives
        return bool(fragments) and all(book.agreed(site, p) > beyond for site in sites for p in fragments)

    def lose_power(self, run, sites, model, chance, first_bytes=None):
        """Loses power, starts again, and waits until all agree beyond: the seconds that it took. `first_bytes`: all that the
        disk keeps of each file of the log."""
        rounds = run.newest()
        run.coordinator.kill()
        self.disk.lose_power(model, chance)
        for log in (run.state_dir / "log").glob("*.log") if first_bytes else ():
            log.write_bytes(log.read_bytes()[:first_bytes])
        begun = time.monotonic()
        self.start_coordinator(run)
        eventually(lambda: self.agree(run, sites, rounds), f"all agree beyond {rounds} after a loss of power ({model})")
        took = time.monotonic() - begun
        self.assertTrue(all(worker.running() for worker in run.workers.values()))
        return took

    def lost_ends(self, run):
        return run.journal("SELECT count(*) FROM events WHERE kind = 'history_lost'")[0][0]

    def lost_ends_of(self, journal):
        run, sites = self.start(journal)
        for model in MODELS:
            self.lose_power(run, sites, model, random.Random(1))
        run.stop_all()
        return self.lost_ends(run)

    def test_a_strict_journal_has_all_that_its_sites_have_heard(self):
        self.assertEqual(self.lost_ends_of("strict"), 0)

    def test_a_relaxed_journal_that_has_lost_the_model_takes_all_of_it_from_the_sites(self):
        run, sites = self.start("relaxed")
        self.lose_power(run, sites, "synced", random.Random(1), first_bytes=600)
        run.stop_all()

    def test_a_relaxed_journal_starts_by_itself_and_takes_from_the_sites_what_it_has_lost(self):
        self.assertGreater(self.lost_ends_of("relaxed"), 0)

    def test_a_lost_end_is_asked_for_again_when_a_second_site_shows_itself(self):
        run, sites = self.start("relaxed")
        rounds = run.newest()
        run.coordinator.send(signal.SIGSTOP)
        kept = run.folder / "kept"
        shutil.copytree(run.state_dir, kept)
        run.coordinator.send(signal.SIGCONT)
        run.await_rounds(rounds + 3)
        run.coordinator.kill()
        for late in sites[1:]:
            run.workers[late].send(signal.SIGSTOP)
        shutil.rmtree(run.state_dir)
        kept.rename(run.state_dir)
        self.start_coordinator(run)
        eventually(lambda: "the state is not completed from the sites'" in run.coordinator.log(), "one site is not believed")
        eventually(lambda: "history_lost" in [alarm["name"] for alarm in run.status()["alarms"]], "the run waits")
        for late in sites[1:]:
            run.workers[late].send(signal.SIGCONT)
        eventually(lambda: self.agree(run, sites, rounds + 3), "all agree beyond what was lost")
        self.assertGreater(self.lost_ends(run), 0)
        run.stop_all()

    def test_a_change_of_the_settings_that_was_answered_is_not_lost(self):
        run, sites = self.start("relaxed")
        losses = int(os.environ.get("CAUSEWAY_POWER_LOSSES", "3"))  # on demand: 20
        for i in range(losses):
            run.control("set", f"outer.lr={0.3 + i / 100}")
            time.sleep(0.2 * i / losses)
            self.lose_power(run, sites, MODELS[i % len(MODELS)], random.Random(i))
            status = run.status()
            self.assertEqual(i + 1, status["settings"][-1]["revision"])
            self.assertAlmostEqual(0.3 + i / 100, status["config"]["outer"]["lr"], 6)
            self.assertNotIn("other settings", "".join(worker.log() for worker in run.workers.values()))
        run.stop_all()

    def test_each_shard_takes_its_fragments_from_the_sites(self):
        run = ShardedRun(self, self.folder / "shards", config_of(100_000, durability={"journal": "relaxed"}))
        disks = [Disk(shard.state_dir, shard.folder / "synced") for shard in run.shards]

        def start(index):
            disks[index].begin()
            run.start(index, environment=disks[index].environment(BIN_DIR / "libcauseway_synced_files.so"))

        for index in (0, 1):
            start(index)
        run.start_workers(*SITES)
        run.await_rounds(3)
        for loss in range(10):  # what it loses is a matter of the moment
            index = 1 - loss % 2
            if loss > 1 and sum(self.lost_ends(shard) for shard in run.shards) > 0:
                break
            beyond = max(run.versions().values()) + 2
            run.shards[index].coordinator.kill()
            disks[index].lose_power("synced", random.Random(1))
            start(index)
            run.await_rounds(beyond)
        self.assertGreater(sum(self.lost_ends(shard) for shard in run.shards), 0)
        for worker in run.workers.values():
            self.assertEqual(worker.terminate(), 0, worker.log()[-2000:])
        for shard in run.shards:
            shard.stop_coordinator()


if __name__ == "__main__":
    unittest.main()
