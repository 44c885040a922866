// The three tables of the sites: presence, bandwidth, training.

const SITE_STATES = {
  training: '●',
  joining: '◔',
  draining: '◑',
  gone: '○',
  finished: '✓',
  silent: '◌'
};

// A site within its lease whose control stream is broken is silent: alive is not known.
const stateOf = (site) => site.finished && site.state === 'gone' ? 'finished' :
    isNumber(site.lease_s_left) && site.state !== 'gone' ? 'silent' : String(site.state ?? DASH);

const sitePath = (site, field) => `sites/${site.name}/${field}`;

// The state again where it is not the usual one: the figures of a site that is gone are the last that came.
const siteColumn = (key) => ({
  key,
  title: 'Site',
  draw: (cell, site) => setTwoLines(cell, String(site.name), stateOf(site) === 'training' ? '' : stateOf(site)),
});

const figureColumn = (table, name, kind, field = name, extra = {}) => ({
  key: `${table}.${name}`,
  title: termOf(`${table}.${name}`),
  figure: (site) => [sitePath(site, field), kind, site[field]],
  ...extra,
});

function setTwoLines(cell, first, second) {
  setPart(cell, 'first', first);
  setPart(cell, 'second', second, 'div');
}

// Its processes where there are several, which of them is the slowest, how far 1-bit Adam is, and its levels.
function drawSite(cell, site) {
  const ranks = site.ranks || {};
  const words = [];
  if (ranks.ranks > 1) {
    words.push(`${grouped(ranks.ranks)} ranks${ranks.hosts > 1 ? ` on ${grouped(ranks.hosts)} hosts` : ''}`);
    if (ranks.slowest) words.push(`slowest: ${ranks.slowest}`);
  }
  if (ranks.onebit_adam) words.push(onebitAdamText(ranks.onebit_adam));
  for (const level of ranks.levels || []) words.push(levelText(level));
  setTwoLines(cell, String(site.name), words.join('; '));
}

// Bytes of a link level of the site in a step, beside the prediction.
function levelText(level) {
  const ratio = level.measured_bytes > 0 ? `, predicted ÷ measured ${(level.predicted_bytes / level.measured_bytes).toFixed(2)}` : '';
  return `${level.name}: ${format('bytes', level.measured_bytes)} a step${ratio}`;
}

function onebitAdamText(onebit) {
  if (onebit.phase !== 'frozen') return '1-bit Adam: warm-up';
  const saved = onebit.compression ? `, sends ${onebit.compression.toFixed(1)} times less` : '';
  return `1-bit Adam: frozen at step ${grouped(onebit.frozen_at)}${saved}`;
}

function drawAlive(cell, site) {
  const state = stateOf(site);
  setAttribute(cell, 'data-state', state);
  const left = isNumber(site.lease_s_left) ? `; its lease ends in ${duration(site.lease_s_left)}` : '';
  setTwoLines(cell, `${SITE_STATES[state] || '·'} ${state}`, `${site.reason || ''}${left}`.replace(/^; /, ''));
}

function drawContributes(cell, site) {
  const known = typeof site.contributing === 'boolean' && stateOf(site) !== 'finished';
  setAttribute(cell, 'data-yes', known ? String(site.contributing) : null);
  setTwoLines(cell, known ? (site.contributing ? '✓ yes' : '✕ no') : DASH,
              known ? site.contributing_reason || '' : '');
}

function drawLastMerged(cell, site) {
  const last = site.last_merged;
  if (!last) return setTwoLines(cell, DASH, last === null ? 'none yet' : '');
  setTwoLines(cell, ago(last.unix_ms, known.status.unix_ms), `fragment ${last.fragment}, version ${last.version}`);
}

function drawMissed(cell, site) {
  const missed = site.missed;
  if (!missed) return setTwoLines(cell, missed === null ? 'none' : DASH, '');
  setTwoLines(cell, `fragment ${missed.fragment}, version ${missed.version}`, missed.reason || '');
}

function drawMergedOfSent(cell, site) {
  setFigure(part(cell, 'merged'), sitePath(site, 'contributions_merged'), 'count', site.contributions_merged);
  setPart(cell, 'of', ' of ');
  setFigure(part(cell, 'sent'), sitePath(site, 'contributions_sent'), 'count', site.contributions_sent);
  const skipped = site.contributions_skipped;
  setPart(cell, 'second', isNumber(skipped) && skipped > 0 ? `${grouped(skipped)} skipped` : '', 'div');
}

// How many of the fragments' anchors the site holds with the coordinator's bits, by the digests of the same version.
// With many sites and fragments the status has only the digests that differ, and the number of the others.
function anchorsOf(site, status) {
  const counts = {
    same: status.details === 'reduced' && isNumber(site.digests_matching) ? site.digests_matching : 0,
    differs: [],
    known: site.digests !== undefined
  };
  const committed = new Map(asList(status.fragments).map((fragment) => [String(fragment.id), fragment]));
  for (const [id, held] of Object.entries(site.digests || {})) {
    const fragment = committed.get(id);
    if (!fragment || !held || held.version !== fragment.version) continue;
    if (held.digest === fragment.digest)
      ++counts.same;
    else
      counts.differs.push(id);
  }
  return counts;
}

function drawAnchors(cell, site) {
  const {same, differs, known: said} = anchorsOf(site, known.status);
  setAttribute(cell, 'data-yes', differs.length ? 'false' : null);
  if (!said) return setTwoLines(cell, DASH, '');
  setTwoLines(
      cell,
      differs.length ? `✕ ${differs.length === 1 ? 'fragment' : 'fragments'} ${idsText(differs)} differ${
                           differs.length === 1 ? 's' : ''}` :
          same ? '✓ same bits' :
                 DASH,
      `${same} of ${asList(known.status.fragments).length} seen at the same version`);
}

const PRESENCE = [
  {key: 'presence.site', title: 'Site', draw: drawSite},
  {key: 'presence.alive', title: 'Alive', draw: drawAlive},
  {key: 'presence.contributes', title: 'Contributes', draw: drawContributes},
  {key: 'presence.last_merged', title: 'Last merged', draw: drawLastMerged},
  {key: 'presence.missed', title: 'Last missed', draw: drawMissed},
  {key: 'presence.merged', title: 'Merged of sent', numeric: true, draw: drawMergedOfSent},
  figureColumn('presence', 'weight', 'percent', 'merged_weight'),
  figureColumn('presence', 'staleness', 'count'),
  {key: 'presence.digests', title: 'Anchors', draw: drawAnchors},
];

function showPresence(status) {
  setTable(
      byId('presence'), 'presence-table', PRESENCE, asList(status.sites), (site) => site.name,
      'No site has joined yet.');
}

// The last two minutes of each site's rates, as this page has seen them: one sample a second and site, and no more.
class Rates {
  constructor() {
    this.keep = 120;
    this.samples = new Map();
  }

  clear() {
    this.samples.clear();
  }

  note(status) {
    const sites = asList(status.sites);
    const names = new Set(sites.map((site) => site.name));
    for (const name of this.samples.keys())
      if (!names.has(name)) this.samples.delete(name);
    for (const site of sites) {
      const samples = this.samples.get(site.name) || [];
      samples.push([
        Date.now(), isNumber(site.up_bytes_per_s) ? site.up_bytes_per_s : 0,
        isNumber(site.down_bytes_per_s) ? site.down_bytes_per_s : 0
      ]);
      if (samples.length > this.keep) samples.shift();
      this.samples.set(site.name, samples);
    }
  }

  of(name) {
    return this.samples.get(name) || [];
  }

  most() {
    return Math.max(1, ...[...this.samples.values()].flat().map((sample) => Math.max(sample[1], sample[2])));
  }
}

const rates = new Rates();
const SPARK = {
  width: 132,
  height: 34,
  span_ms: 120e3
};

// Up as a line above the middle, down as a line below it, both to the scale of the busiest site.
function drawSpark(cell, site) {
  if (!cell.firstChild) {
    cell.append(
        svg('svg', {
          class: 'spark',
          width: SPARK.width,
          height: SPARK.height,
          viewBox: `0 0 ${SPARK.width} ${SPARK.height}`,
          role: 'img',
          'aria-label': 'rates of the last two minutes, up above and down below the line'
        },
            svg('line', {class: 'middle', x1: 0, x2: SPARK.width, y1: SPARK.height / 2, y2: SPARK.height / 2}),
            svg('path', {class: 'up'}), svg('path', {class: 'down'})));
  }
  const [, up, down] = cell.firstChild.children;
  const samples = rates.of(site.name);
  const half = SPARK.height / 2;
  const x = linear(Date.now() - SPARK.span_ms, Date.now(), 0, SPARK.width);
  const path = (index, y) => samples.length < 2 ? '' :
                                                  `M${x(samples[0][0]).toFixed(1)} ${half}` +
          samples.map((sample) => `L${x(sample[0]).toFixed(1)} ${y(sample[index]).toFixed(1)}`).join('') +
          `L${x(samples[samples.length - 1][0]).toFixed(1)} ${half}Z`;
  setAttribute(up, 'd', path(1, linear(0, rates.most(), half, 1)));
  setAttribute(down, 'd', path(2, linear(0, rates.most(), half, SPARK.height - 1)));
}

const nowColumn = (direction, label) => ({
  key: 'bandwidth.now',
  title: 'Now',
  label: `${label} now`,
  group: label,
  numeric: true,
  draw: (cell, site) => {
    const rate = site[`${direction}_bytes_per_s`];
    setFigure(part(cell, 'first'), sitePath(site, `${direction}_bytes_per_s`), 'rate', rate);
    setPart(cell, 'second', isNumber(rate) ? format('bits', rate) : '', 'div');
  },
});

function directionColumns(direction, label) {
  const column = (name, kind, field) =>
      figureColumn('bandwidth', name, kind, field, {group: label, label: `${label} ${name}`});
  return [
    nowColumn(direction, label), column('mean', 'rate', `${direction}_mean_bytes_per_s`),
    column('peak', 'rate', `${direction}_peak_bytes_per_s`), column('total', 'bytes', `${direction}_bytes`)
  ];
}

// By the rule of float32_every_step_bytes, of one site.
const float32Of = (site, status) =>
    isNumber(site.step) && isNumber(status.parameters) ? 8 * status.parameters * site.step : null;

// The coordinator's meters begin at 0 with it, the sites' steps do not: after a restart the ratio is an upper bound.
const wasRestarted = (status) => isNumber(status.epoch) && status.epoch > 1;

function drawSaved(cell, site) {
  setPart(cell, 'bound', wasRestarted(known.status) ? '≤ ' : '');
  const saved = quotient(float32Of(site, known.status), sum([site.up_bytes, site.down_bytes]));
  setFigure(part(cell, 'figure'), `computed/${site.name}/saved`, 'times', saved);
}

const BANDWIDTH = [
  siteColumn('bandwidth.site'),
  ...directionColumns('up', '↑ Up'),
  ...directionColumns('down', '↓ Down'),
  {key: 'bandwidth.now', title: 'Last 2 min', draw: drawSpark},
  {
    key: 'bandwidth.float32',
    title: 'float32 every step',
    group: 'Instead of',
    label: 'float32 every step',
    figure: (site) => [`computed/${site.name}/float32`, 'bytes', float32Of(site, known.status)]
  },
  {key: 'bandwidth.saved', title: 'Saved', group: 'Instead of', numeric: true, draw: drawSaved},
];

function showBandwidth(status) {
  setTable(
      byId('bandwidth'), 'bandwidth-table', BANDWIDTH, asList(status.sites), (site) => site.name,
      'No site has joined yet.');
}

function drawUtilization(cell, site) {
  setFigure(part(cell, 'first'), sitePath(site, 'utilization'), 'percent', site.utilization);
  const meter = part(cell, 'meter', 'div');
  if (!meter.firstChild) meter.append(el('div'));
  setAttribute(meter, 'hidden', isNumber(site.utilization) ? null : '');
  if (isNumber(site.utilization)) meter.firstChild.style.width = `${Math.max(0, Math.min(1, site.utilization)) * 100}%`;
}

function drawStall(cell, site) {
  setFigure(part(cell, 'first'), sitePath(site, 'stall_s'), 'seconds', site.stall_s);
  const share = quotient(site.stall_s, site.wall_s);
  setPart(cell, 'second', isNumber(share) ? `${format('percent', share)} of its time` : '', 'div');
}

function drawDelay(cell, site) {
  const delays = asList(site.fragments).map((fragment) => fragment.fragment_sync_delay).filter(isNumber);
  setFigure(cell, `computed/${site.name}/delay`, 'count', delays.length ? Math.max(...delays) : null);
}

const TRAINING = [
  siteColumn('training.site'),
  figureColumn('training', 'step', 'count'),
  figureColumn('training', 'tokens', 'size'),
  figureColumn('training', 'tokens_per_s', 'number'),
  figureColumn('training', 'loss', 'loss'),
  {key: 'training.utilization', title: 'Utilization', numeric: true, draw: drawUtilization},
  {key: 'training.stall', title: 'Stall', numeric: true, draw: drawStall},
  figureColumn('training', 'slack', 'seconds', 'slack_s'),
  {key: 'training.delay', title: 'τ', label: 'τ, steps', numeric: true, draw: drawDelay},
  figureColumn('training', 'residual', 'number', 'residual_norm'),
  {
    key: 'training.in_flight',
    title: 'In flight',
    draw: (cell, site) => setText(cell, asList(site.in_flight).join(', ') || DASH)
  },
];

function showTraining(status) {
  setTable(
      byId('training'), 'training-table', TRAINING, asList(status.sites), (site) => site.name,
      'No site has joined yet.');
}
