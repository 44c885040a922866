// The parts of a round: stretches of time, sites, words. They come from the entries of GET /timeline:
//
//   {fragment, version, first_unix_ms, arrived: [[site index, begun, arrived], …], decided_unix_ms, merged_unix_ms,
//    taken: [[site index, taken], …], reason}         times that have not come yet are null

const times = (values) => values.filter(isNumber);
const most = (values) => times(values).length ? Math.max(...times(values)) : null;

// The stretches of a round: [kind, from, to]; those that are not over end now.
function stretchesOf(round, now, isNewest) {
  const arrivals = asList(round.arrived);
  const underWay = arrivals.some((one) => isNumber(one[1]) && !isNumber(one[2]));
  const lastArrived = most(arrivals.map((one) => one[2]));
  const decided = round.decided_unix_ms;
  const begin = isNumber(round.first_unix_ms) ? round.first_unix_ms : lastArrived ?? decided ?? round.merged_unix_ms;
  if (!isNumber(begin)) return [];
  const gathered = isNumber(decided) ? decided : now;
  const sent = underWay && !isNumber(decided) ? now : Math.min(gathered, Math.max(begin, lastArrived ?? gathered));
  const stretches = [['send', begin, sent]];
  if (gathered > sent) stretches.push(['wait', sent, gathered]);
  if (!isNumber(decided)) return stretches;
  const merged = isNumber(round.merged_unix_ms) ? round.merged_unix_ms : now;
  stretches.push(['merge', decided, merged]);
  if (!isNumber(round.merged_unix_ms)) return stretches;
  const taken = most(asList(round.taken).map((one) => one[1])) ?? (isNewest ? now : null);
  if (taken !== null && taken > merged) stretches.push(['take', merged, taken]);
  return stretches;
}

const endOf = (round, now) => most(stretchesOf(round, now, false).map((stretch) => stretch[2])) ?? now;

// One round in words, for the note, the reader of the chart and the details.
function roundText(round, names, now) {
  const name = (one) => names[one[0]] ?? `site ${one[0]}`;
  const arrived = asList(round.arrived).filter((one) => isNumber(one[2]));
  const onTheWay = asList(round.arrived).filter((one) => !isNumber(one[2]));
  const span = (from, to) => isNumber(from) && isNumber(to) ? duration(Math.max(0, to - from) / 1000) : DASH;
  const last = most(arrived.map((one) => one[2]));
  const lines = [`Fragment ${round.fragment}, version ${round.version}`];
  lines.push(`Arrived: ${arrived.map(name).join(', ') || 'nothing yet'}${
      onTheWay.length ? `; on the way: ${onTheWay.map(name).join(', ')}` : ''}`);
  lines.push(`Sending ${span(round.first_unix_ms, last)}, then waiting ${span(last, round.decided_unix_ms ?? now)}${
      isNumber(round.decided_unix_ms) ? '' : ' so far'}`);
  if (isNumber(round.decided_unix_ms))
    lines.push(`Merging ${span(round.decided_unix_ms, round.merged_unix_ms ?? now)}${
        isNumber(round.merged_unix_ms) ? '' : ' so far'}`);
  const taken = asList(round.taken);
  if (isNumber(round.merged_unix_ms))
    lines.push(`Downloaded by ${taken.map(name).join(', ') || 'no site yet'}${
        taken.length ? `, the last after ${span(round.merged_unix_ms, most(taken.map((one) => one[1])))}` : ''}`);
  if (round.reason) lines.push(`${isNumber(round.decided_unix_ms) ? 'Decided' : 'Waits'}: ${round.reason}`);
  return lines;
}

const beginOf = (round, now) => stretchesOf(round, now, false)[0]?.[1] ?? now;

// The time axis as [begin, end]. `wanted` is 'auto', 'all' or seconds.
function spanOf(rounds, now, wanted) {
  const first = Math.min(...rounds.map((round) => beginOf(round, now)));
  if (wanted === 'all') return [first, now];
  if (isNumber(wanted)) return [now - wanted * 1000, now];
  // As long as four rounds of the fragment with the slowest ones take, from one's beginning to the next one's.
  const begins = new Map();
  for (const round of rounds) begins.set(round.fragment, [...(begins.get(round.fragment) || []), beginOf(round, now)]);
  const periods = [...begins.values()]
                      .map((list) => list.slice(-6))  // of late
                      .filter((list) => list.length > 1)
                      .map((list) => (list[list.length - 1] - list[0]) / (list.length - 1));
  if (!periods.length) return [first, now];
  const length = Math.max(5000, 4.2 * Math.max(...periods));
  // Where nothing has happened for long (a paused run), what happened last is shown, not an empty axis.
  const end = Math.min(now, lastEventMs(rounds) + 0.3 * length);
  return [Math.max(first, end - length), end];
}

const lastEventMs = (rounds) => most(rounds.flatMap(
    (round) =>
        [round.first_unix_ms, round.decided_unix_ms, round.merged_unix_ms,
         ...asList(round.arrived).flatMap((one) => [one[1], one[2]]), ...asList(round.taken).map((one) => one[1])]));

const ROUND_COLUMNS = [
  ['site', 'Site'], ['begun', 'Began to send'], ['arrived', 'Arrived'], ['sending', 'Sending took'],
  ['taken', 'Took the update']
].map(([name, title], i) => ({
        key: `timeline.${name}`,
        title,
        numeric: i > 0,
        draw: (cell, row) => setText(cell, row[name]),
      }));

function roundRows(round, names) {
  const after = (ms) => isNumber(ms) && isNumber(round.first_unix_ms) ?
      `+${duration(Math.max(0, ms - round.first_unix_ms) / 1000)}` :
      DASH;
  const taken = new Map(asList(round.taken).map((one) => [one[0], one[1]]));
  const arrived = new Map(asList(round.arrived).map((one) => [one[0], one]));
  return [...new Set([...arrived.keys(), ...taken.keys()])].sort((a, b) => a - b).map((index) => {
    const [, begun, end] = arrived.get(index) || [];
    return {
      site: names[index] ?? `site ${index}`,
      begun: after(begun),
      arrived: after(end),
      sending: isNumber(begun) && isNumber(end) ? duration(Math.max(0, end - begun) / 1000) : DASH,
      taken: after(taken.get(index))
    };
  });
}
