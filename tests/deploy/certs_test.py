"""deploy/certs: what it makes, that it works twice, and what it says of mistakes."""

import hashlib
import pathlib
import re
import stat
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "deploy" / "certs"


class Certs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name) / "certs"

    def certs(self, *arguments, code=0):
        done = subprocess.run([SCRIPT, "--out", self.out, *arguments], capture_output=True, text=True)
        self.assertEqual(code, done.returncode, done.stderr)
        return done.stdout if code == 0 else done.stderr

    def openssl(self, *arguments):
        said = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=True).stdout
        return re.sub(r"\b(CN|OU)=", r"\1 = ", said)  # OpenSSL 3.2 leaves the blanks out

    def names(self, certificate):
        text = self.openssl("x509", "-in", self.out / certificate, "-noout", "-subject", "-ext",
                            "subjectAltName,extendedKeyUsage")
        return " ".join(text.split())

    def contents(self):
        return {path.name: path.read_bytes() for path in self.out.iterdir()}

    def test_makes_what_each_needs_and_says_where_it_goes(self):
        said = self.certs("--coordinator", "eu.example.com", "--coordinator", "10.0.0.1,fd00::1", "--site", "a",
                          "--operator")
        self.openssl("verify", "-CAfile", self.out / "ca.pem", *[self.out / f"{name}.pem"
                                                                 for name in ("coordinator", "a", "operator")])
        coordinator = self.names("coordinator.pem")
        for name in ("DNS:eu.example.com", "IP Address:10.0.0.1", "IP Address:FD00:0:0:0:0:0:0:1", "DNS:localhost",
                     "IP Address:127.0.0.1", "TLS Web Server Authentication"):
            self.assertIn(name, coordinator)
        self.assertIn("CN = a", self.names("a.pem"))
        self.assertIn("TLS Web Client Authentication", self.names("a.pem"))
        self.assertIn("CN = operator", self.names("operator.pem"))
        self.assertIn("site a: copy ca.pem, a.pem, a.key", said)
        self.assertIn("--tls_ca=ca.pem --tls_cert=coordinator.pem --tls_key=coordinator.key", said)
        for key in self.out.glob("*.key"):
            self.assertEqual(0o600, stat.S_IMODE(key.stat().st_mode), key)
        self.assertEqual({"ca", "coordinator", "a", "operator", "revoked"}, {path.stem for path in self.out.iterdir()})

    def test_a_second_time_it_adds_and_changes_nothing(self):
        self.certs("--coordinator", "eu", "--site", "a", "--token", "a")
        before = self.contents()
        said = self.certs("--coordinator", "us", "--site", "a", "--site", "b", "--token", "a", "--token", "b")
        self.assertIn("coordinator.pem exists already; --renew makes it anew", said)
        after = self.contents()
        self.assertEqual(before["site_tokens"].decode().split(), after["site_tokens"].decode().split()[:2])
        added = {name for name in after if after[name] != before.get(name)}
        self.assertEqual({"b.pem", "b.key", "b.token", "site_tokens"}, added)
        self.openssl("verify", "-CAfile", self.out / "ca.pem", self.out / "b.pem")

    def test_renew_replaces_all_but_the_ca(self):
        self.certs("--site", "a", "--token", "a")
        before = self.contents()
        self.certs("--renew", "--site", "a", "--token", "a")
        after = self.contents()
        self.assertEqual({"a.pem", "a.key", "a.token", "site_tokens"},
                         {name for name in after if after[name] != before[name]})
        self.assertEqual(1, after["site_tokens"].decode().count("\n"))

    def test_tokens_are_written_with_their_line_for_the_coordinator(self):
        said = self.certs("--token", "a.b", "--token", "axb", "--token", "operator")
        lines = dict(line.split() for line in (self.out / "site_tokens").read_text().splitlines())
        self.assertEqual({"a.b", "axb", "operator"}, set(lines))
        for name, sha in lines.items():
            token = (self.out / f"{name}.token").read_text().strip()
            self.assertEqual(sha, hashlib.sha256(token.encode()).hexdigest())
            self.assertIn(f"{name} {sha}", said)
            self.assertNotIn(token, said)
        self.assertEqual(0o600, stat.S_IMODE((self.out / "a.b.token").stat().st_mode))
        self.certs("--renew", "--token", "a.b")
        self.assertEqual(3, len((self.out / "site_tokens").read_text().splitlines()))

    def subject(self, certificate):
        return self.openssl("x509", "-in", self.out / certificate, "-noout", "-subject").strip()

    def test_operators_and_shards_have_their_role_in_certificate_and_token_line(self):
        said = self.certs("--operator", "oncall:operate", "--token", "operator:oncall", "--shard", "tokyo", "--token",
                          "shard:tokyo")
        self.openssl("verify", "-CAfile", self.out / "ca.pem", self.out / "operator-oncall.pem",
                     self.out / "shard-tokyo.pem")
        self.assertEqual("subject=OU = operate, CN = operator:oncall", self.subject("operator-oncall.pem"))
        self.assertEqual("subject=OU = shard, CN = shard:tokyo", self.subject("shard-tokyo.pem"))
        tokens = (self.out / "site_tokens").read_text().splitlines()
        for line, name, role in zip(tokens, ("operator:oncall", "shard:tokyo"), ("operate", "shard"), strict=True):
            token = (self.out / f"{name.replace(':', '-')}.token").read_text().strip()
            self.assertEqual(f"{name} {role} {hashlib.sha256(token.encode()).hexdigest()}", line)
            self.assertIn(line, said)
        self.assertIn("add --membership_tls_cert, --membership_tls_key to", said)

    def test_each_shards_owner_gets_a_folder_with_what_is_theirs_and_the_authority_stays(self):
        folders = self.out.parent / "run"
        owners = [word for name in ("eu", "us") for word in ("--site", name, "--token", name, "--shard", f"{name}={name}.example,10.0.0.1",
                                                             "--token", f"shard:{name}")]
        for renew in ([], ["--renew"]):
            self.certs(*owners, "--operator", "--token", "operator", "--folders", folders, *renew)
            self.assertEqual(sorted(path.name for path in folders.iterdir()), ["eu", "operator", "us"])
            self.assertEqual(sorted(path.name for path in (folders / "eu" / "certs").iterdir()),
                             ["ca.pem", "coordinator.key", "coordinator.pem", "eu.key", "eu.pem", "eu.token", "revoked",
                              "shard-eu.key", "shard-eu.pem", "shard-eu.token", "site_tokens"])
            self.assertEqual(sorted(path.name for path in (folders / "operator").iterdir()),
                             ["ca.pem", "operator.key", "operator.pem", "operator.token"])
            for name in ("eu", "us"):
                own, made = folders / name / "certs" / "coordinator.pem", self.out / f"coordinator-{name}.pem"
                self.assertEqual(own.read_bytes(), made.read_bytes())
                self.assertIn(f"DNS:{name}.example, IP Address:10.0.0.1",
                              self.openssl("x509", "-in", own, "-noout", "-ext", "subjectAltName"))
                self.assertEqual((folders / name / "certs" / f"{name}.key").stat().st_mode & 0o777, 0o600)
                self.assertEqual((folders / name / "certs" / "site_tokens").read_text(), (self.out / "site_tokens").read_text())
        self.assertIn("expected a host's name", self.certs("--shard", "eu=a b", code=2))
        self.assertIn("is not for sites", self.certs("--site", "coordinator-eu", code=2))

    def test_a_role_is_kept_by_renewals_and_changed_by_another_role(self):
        self.certs("--operator", "oncall:watch")
        self.certs("--renew", "--token", "operator:oncall")
        self.assertRegex((self.out / "site_tokens").read_text(), "^operator:oncall watch [0-9a-f]{64}\n$")
        self.certs("--renew", "--operator", "oncall:admin", "--token", "operator:oncall")
        self.assertEqual("subject=OU = admin, CN = operator:oncall", self.subject("operator-oncall.pem"))
        self.assertRegex((self.out / "site_tokens").read_text(), "^operator:oncall admin [0-9a-f]{64}\n$")

    def test_revoking_adds_the_serial_of_the_certificate_once(self):
        self.certs("--coordinator", "eu", "--site", "a", "--site", "b", "--operator", "oncall:watch")
        empty = (self.out / "revoked").read_text()
        self.assertRegex(empty, "^#[^\n]*\n$")
        self.assertEqual(0o644, stat.S_IMODE((self.out / "revoked").stat().st_mode))
        for name in ("a", "operator:oncall", "a"):
            self.certs("--revoke", name)
        serials = [self.openssl("x509", "-in", self.out / f"{name}.pem", "-noout", "-serial").strip().split("=")[1]
                   for name in ("a", "operator-oncall")]
        lines = (self.out / "revoked").read_text().removeprefix(empty).splitlines()
        self.assertEqual(serials, [line.split()[0] for line in lines])
        self.certs("--coordinator", "eu")
        self.assertEqual(lines, (self.out / "revoked").read_text().removeprefix(empty).splitlines(), "it stays")
        self.assertIn("there is no", self.certs("--revoke", "c", code=2))
        self.certs("--renew", "--site", "a")
        self.certs("--revoke", "a")
        self.assertEqual(4, len((self.out / "revoked").read_text().splitlines()), "the renewed one's, too")

    def test_days(self):
        self.certs("--days", "30", "--site", "a")
        self.openssl("x509", "-in", self.out / "a.pem", "-noout", "-checkend", str(29 * 86400))
        with self.assertRaises(subprocess.CalledProcessError):
            self.openssl("x509", "-in", self.out / "a.pem", "-noout", "-checkend", str(31 * 86400))

    def test_they_hold_on_a_machine_whose_clock_is_an_hour_late(self):
        self.certs("--coordinator", "eu", "--site", "a")
        late = str(int(time.time()) - 3500)
        self.openssl("verify", "-attime", late, "-CAfile", self.out / "ca.pem", self.out / "a.pem",
                     self.out / "coordinator.pem")

    def test_mistakes_are_named_and_nothing_is_made(self):
        for arguments, message in [(["--days", "soon"], "got 'soon'"), (["--site", "../a"], "got '../a'"),
                                   (["--coordinator", "eu:7077"], "without a port, got 'eu:7077'"),
                                   (["--site"], "--site: expected a value"), (["--frob"], "unknown argument '--frob'"),
                                   (["--site", "operator"], "'operator' is not for sites"),
                                   (["--operator", "oncall:root"], "role watch, operate or admin, got 'oncall:root'"),
                                   (["--operator", "oncall"], "expected NAME:ROLE")]:
            self.assertIn(message, self.certs(*arguments, code=2))
            self.assertFalse(self.out.exists(), arguments)
        done = subprocess.run([SCRIPT], capture_output=True, text=True)
        self.assertEqual((2, "certs: expected --out DIR; --help tells more\n"), (done.returncode, done.stderr))

    def test_half_a_ca_is_not_replaced(self):
        self.certs("--site", "a")
        (self.out / "ca.key").unlink()
        self.assertIn("only one of ca.pem and ca.key", self.certs("--site", "b", code=2))


if __name__ == "__main__":
    unittest.main()
