"""The journal's account of a run: how much work was merged, and whether any of it twice."""

import json
import re
import statistics

ROUNDS = "SELECT fragment, version, decided_unix_ms, sites, digest FROM rounds ORDER BY fragment, version"
CONTRIBUTIONS = ("SELECT fragment, site, base, steps, merged_version, weight FROM contributions "
                 "ORDER BY fragment, site, base")
EVENTS = "SELECT fragment, text FROM events WHERE kind = 'round' ORDER BY id"
JOINS = "SELECT site, count(*) FROM events WHERE kind = 'join' GROUP BY site"
REFUSALS = "SELECT site, fragment, text FROM events WHERE kind = 'refuse' ORDER BY id"
CONTRIBUTOR = re.compile(r"(\S+) \(base (\d+), weight ")


class Journal:
    def __init__(self, query):
        self.integrity = query("PRAGMA integrity_check")[0][0]
        self.rounds = {(p, version): (ms / 1000, json.loads(sites), digest)
                       for p, version, ms, sites, digest in query(ROUNDS)}
        self.contributions = query(CONTRIBUTIONS)
        self.events = query(EVENTS)
        self.entries = query(JOINS)
        self.refusals = query(REFUSALS)
        self.fragments = len({p for p, _ in self.rounds})
        self.contributors = {}
        for p, site, _, _, version, _ in self.contributions:
            if version is not None:
                self.contributors.setdefault((p, version), set()).add(site)

    def digest(self, fragment, version):
        return self.rounds.get((fragment, version), (0, [], None))[2]

    def site_steps_per_s(self, begin, end):
        """Steps of all sites that were merged, each counted once, in a second: of each fragment from its first round
        after `begin` to its first after `end` (time.time()), so that no part of a round's time is counted without its
        work; the mean of the fragments."""
        return statistics.fmean(self.fragment_rate(fragment, begin, end) for fragment in range(self.fragments))

    def fragment_rate(self, fragment, begin, end):
        decided = sorted((decided, version) for (p, version), (decided, _, _) in self.rounds.items() if p == fragment)
        first, last = (next(row for row in decided if row[0] >= moment) for moment in (begin, end))
        steps = sum(steps for p, _, _, steps, version, _ in self.contributions
                    if p == fragment and version is not None and first[1] < version <= last[1])
        return steps / (last[0] - first[0])

    def shares(self, begin, end, is_live):
        """For each round, the share of the sites live at its decision that had contributed."""
        shares = []
        for key, (decided, sites, _) in self.rounds.items():
            live = [site for site in sites if is_live(site, decided)]
            if begin <= decided < end and live:
                shares.append(sum(site in self.contributors[key] for site in live) / len(live))
        return shares

    def next_commit_s(self, moment):
        """Seconds from then to the next round of any fragment; None: there was none."""
        return min((decided - moment for decided, _, _ in self.rounds.values() if decided >= moment), default=None)

    def joins(self):
        """How often each site has entered the run anew."""
        return dict(self.entries)

    def problems(self, steps_of_undisturbed, slack_steps):
        """All that must not be, in words. `steps_of_undisturbed`: steps that each site took which no fault met; all but the
        last of them are in its contributions."""
        problems = [] if self.integrity == "ok" else [f"journal.sqlite: {self.integrity}"]
        problems += self.merged_twice() + self.refused() + self.broken_rounds()
        for site, taken in steps_of_undisturbed.items():
            for fragment in range(self.fragments):
                sent = sum(steps for p, name, _, steps, _, _ in self.contributions if (p, name) == (fragment, site))
                if not taken - slack_steps <= sent <= taken:
                    problems.append(f"site {site} took {taken} steps, its contributions to fragment {fragment} are of "
                                    f"{sent}")
        return problems

    def merged_twice(self):
        """By two records: the rows of the contributions, and the tape that said at each decision what goes in."""
        problems, last, told = [], {}, {}
        for fragment, text in self.events:
            version = int(re.match(r"version (\d+):", text)[1])
            for site, base in CONTRIBUTOR.findall(text):
                if int(base) <= last.get((fragment, site), -1):
                    problems.append(f"fragment {fragment}: version {version} merges {site}'s base {base} after base "
                                    f"{last[fragment, site]}")
                last[fragment, site] = int(base)
                told[fragment, site, int(base)] = version
        rows = {(p, site, base): version for p, site, base, _, version, _ in self.contributions if version is not None}
        if rows != told:
            different = sorted(set(rows.items()) ^ set(told.items()))[:3]
            problems.append(f"contributions and events differ: {different}")
        return problems

    def refused(self):
        """Every site is honest: none of its contributions is too long."""
        return [f"site {site}, fragment {fragment}: refused: {text}" for site, fragment, text in self.refusals]

    def broken_rounds(self):
        problems, weights = [], {}
        for p, _, _, _, version, weight in self.contributions:
            if version is not None:
                weights[p, version] = weights.get((p, version), 0) + weight
        for fragment in range(self.fragments):
            versions = [version for p, version in self.rounds if p == fragment]
            if versions != list(range(1, len(versions) + 1)):
                problems.append(f"fragment {fragment}: rounds are missing: {len(versions)}, the last is {versions[-1]}")
        for (p, version), (_, _, digest) in self.rounds.items():
            if digest is None:
                problems.append(f"fragment {p}: version {version} has no digest")
            if abs(weights.get((p, version), 0) - 1) > 1e-5:
                problems.append(f"fragment {p}: version {version}: weights add up to {weights.get((p, version))}")
        return problems
