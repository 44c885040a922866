// Is the run healthy? One sentence, the rounds that wait and why, alarms with advice, and the figures of the whole run.

// Advice for each alarm, by its name; an alarm that is not here is shown with the coordinator's text alone.
const ALARMS = {
  site_alone: [
    'One site trains alone',
    'See why the others are gone (their reasons are below) and start their workers again. The site\'s training is still merged meanwhile.'
  ],
  below_quorum: [
    'Fewer sites than a quorum',
    'No round closes until min_quorum sites are active. Start more sites, or lower membership.min_quorum and restart the coordinator.'
  ],
  digest_mismatch: [
    'A site holds other bits',
    'The site takes that fragment anew by itself. If it happens again, suspect the memory or the storage of that machine, or a worker of another version: drain the site.'
  ],
  site_gone: [
    'A site is gone',
    'Look at its machine and its worker\'s log, and start the worker again: it resumes. If it is not to come back: causewayctl drain.'
  ],
  residual_growing: [
    'The residual keeps growing',
    'The codec drops more than error feedback brings back. Choose a finer codec (codec.up, codec.down), or look for a loss that jumps.'
  ],
  disk_low: [
    'The coordinator\'s disk fills up',
    'Make room, or give the state directory a larger volume. The coordinator ends before the disk is full; everything it acknowledged is safe.'
  ],
  no_standby: [
    'No standby is connected',
    'Start it again with --standby_of, or look at the link to it: the log of each says why.'
  ],
  copy_failed: [
    'The newest copy is not where it should be',
    'The run goes on. The text says what failed; what a hook printed is in copy_hook.log in the state directory. The next copy is made after the next snapshot.'
  ],
  standby_behind: [
    'A standby is behind',
    'It could lead only from what it has. Look at the link between the two, and at its disk.'
  ],
  disk_slow: [
    'The coordinator\'s disk is slow',
    'Nothing is acknowledged before it is on the disk, so every site waits. Look for another program that writes there, or a volume that fails or is throttled.'
  ],
  damage_found: [
    'The state directory is damaged',
    'Something there is not what was written. Do what the text says before the coordinator is started again, and look at the disk.'
  ],
  site_quarantined: [
    'A site is in quarantine',
    'Its contributions are far too long, and are refused. See its log and its loss. One of a usual length ends it, or causewayctl release.'
  ],
  contribution_refused: [
    'A contribution was refused',
    'It is far too long, or counts what a setting does not take: the text says which. The site keeps its training.'
  ],
  site_noisy: [
    'A site sends too many requests',
    'Its streams are ended, and the other sites continue. Its program repeats something without a pause: read its log, and look for its address in the coordinator\'s log.'
  ],
  outlier_merged: [
    'A contribution is far longer than usual',
    'It was scaled down to values.gate. After a change of the learning rate or a restart it ends by itself; of one site again and again: see its loss and its data.'
  ],
  lengths_apart: [
    'The two sites send contributions of very different length',
    'Compare their learning rates, batches and data: which of them is meant so only you can say.'
  ],
  round_stands: [
    'The others wait for one site',
    'Look at its log and its link: an upload may creep, or a step hang. causewayctl drain ends its place after a lease.'
  ],
  file_refused: [
    'A file of credentials cannot be taken as it is now',
    'The text names it and what is wrong. The contents of before stay in use; the next start would fail.'
  ],
  unknown_lineage: [
    'Sites of another run wait',
    'They hold parameters that this state directory does not know. Start the coordinator on the right directory, or rebuild it from the sites (--rebuild_from_sites).'
  ],
  history_lost: [
    'The state is older than the run',
    'A site has seen more than is stored here, so no round closes. Start the coordinator on the newer directory, or rebuild it from the sites.'
  ],
  two_coordinators: [
    'Two coordinators',
    'Two copies of one state, or two behind one address (a Deployment with replicas: 2, a name with two machines). Stop the one that was started by mistake.'
  ],
  two_workers: [
    'Two workers are one site',
    'Another process shows the session of a site that trains: a cloned machine, or a copy of its checkpoints. Give it another name and a checkpoint directory of its own.'
  ],
  transfers_fail: [
    'Transfers of a site fail',
    'Something ends them again and again; the text has its words. Look at what stands between: a proxy with a limit (nginx: client_max_body_size 0), a firewall.'
  ],
  certificate_ending: [
    'A certificate ends soon',
    'Make a new one (deploy/certs --renew) and replace the old one. The coordinator reads it again when the file changes.'
  ],
  site_silent: [
    'A site fell silent',
    'Its control stream broke; it keeps its place until its lease ends. Look at its link and its worker. If it does not come back, rounds continue without it.'
  ],
  run_paused: [
    'The run is paused',
    'No round closes. If an operator paused it: causewayctl resume. Otherwise the reason says what it waits for.'
  ],
  training_diverges: [
    'Training diverges',
    'Pause the run (causewayctl pause). See in the curves when it began. Try a lower outer.lr or inner.lr, or a finer codec, or look for a site with bad data. Then resume from an earlier snapshot or export.'
  ],
};

const MARKS = {
  critical: '▲',
  warning: '◆',
  good: '●',
  waiting: '◔',
  paused: '❚❚',
  done: '✓',
  unknown: '…'
};

function judge(status) {
  const alarms = asList(status.alarms);
  if (status.state === 'done') return ['done', 'Done'];
  if (alarms.some((alarm) => alarm.severity === 'critical')) return ['critical', 'Needs attention'];
  if (status.state === 'paused') return ['paused', 'Paused'];
  const gone = alarms.filter((alarm) => alarm.name === 'site_gone');
  if (status.state === 'training' && gone.length && gone.length === alarms.length) {
    if (gone.length > 3) return ['warning', `Training without ${gone.length} sites`];
    return [
      'warning', `Training without ${gone.length === 1 ? 'site' : 'sites'} ${gone.map((alarm) => alarm.site).join(', ')}`
    ];
  }
  if (alarms.length)
    return ['warning', status.state === 'waiting' ? 'Waiting, with a warning' : 'Training, with a warning'];
  if (status.state === 'waiting') return ['waiting', 'Waiting to start'];
  return status.state === 'training' ? ['good', 'Healthy'] : ['unknown', 'State unknown'];
}

const presentSites = (status) => asList(status.sites).filter((site) => site.state !== 'gone');

// contributing_sites; counted from the sites where the coordinator does not say.
function contributing(status) {
  if (isNumber(status.contributing_sites)) return status.contributing_sites;
  const said = asList(status.sites).filter((site) => typeof site.contributing === 'boolean');
  return said.length ? said.filter((site) => site.contributing).length : null;
}

function newestMergeMs(status, timeline) {
  const merges = asList(status.sites)
                     .map((site) => site.last_merged && site.last_merged.unix_ms)
                     .concat(asList(timeline && timeline.rounds).map((round) => round.merged_unix_ms))
                     .filter(isNumber);
  return merges.length ? Math.max(...merges) : null;
}

// "All 3 sites train and contribute." or "3 sites: 1 trains, 1 is silent, 1 is gone; 1 contributes."
function sitesSentence(status) {
  const sites = asList(status.sites);
  if (!sites.length) return 'No site has joined yet.';
  const contributors = contributing(status);
  const counts = new Map();
  for (const site of sites) counts.set(stateOf(site), (counts.get(stateOf(site)) || 0) + 1);
  if (counts.get('training') === sites.length && (contributors === null || contributors === sites.length)) {
    if (sites.length === 1) return `1 site trains${contributors === null ? '' : ' and contributes'}.`;
    return `All ${sites.length} sites train${contributors === null ? '' : ' and contribute'}.`;
  }
  const states = [...counts].map(([state, count]) => {
    if (state === 'training') return count === 1 ? '1 trains' : `${count} train`;
    return `${count} ${count === 1 ? 'is' : 'are'} ${state}`;
  });
  const last = contributors === null || allFinished(status) ? '' : `; ${contributors} ${contributors === 1 ? 'contributes' : 'contribute'}`;
  return `${plural(sites.length, 'site', 'sites')}: ${states.join(', ')}${last}.`;
}

function pausedSentence(status) {
  const count = presentSites(status).length;
  return count ? `${plural(count, 'site is', 'sites are')} in the run; no round closes while it is paused.` : '';
}

function sentence(status, timeline) {
  const merged = newestMergeMs(status, timeline);
  return [
    status.reason ? `The coordinator says: ${status.reason}.` : '',
    status.state === 'paused' ? pausedSentence(status) : sitesSentence(status),
    merged === null ? '' : `The newest round was merged ${ago(merged, status.unix_ms)}.`,
  ].filter(Boolean)
      .join(' ');
}

function showHealth(status, timeline) {
  const [level, word] = judge(status);
  setAttribute(byId('health'), 'data-level', level);
  setText(byId('verdict-mark'), MARKS[level]);
  setText(byId('verdict-word'), word);
  setText(byId('sentence'), sentence(status, timeline));
  setText(byId('progress'), [progressText(status), lossText(status)].filter(Boolean).join(' · '));
  showJoin(status);
  for (const section of document.querySelectorAll('[data-needs-sites]'))
    setAttribute(section, 'hidden', asList(status.sites).length ? null : '');
  showWaits(status);
  showAlarms(status);
}

const MOST_LINES = 4;

const atMost = (lines, rest) => lines.length <= MOST_LINES ?
    lines :
    [...lines.slice(0, MOST_LINES - 1), `and ${lines.length - MOST_LINES + 1} ${rest}`];

// Rounds that wait, in the coordinator's words; those of one reason together.
function showWaits(status) {
  const byReason = new Map();
  if (status.state === 'training') {
    for (const fragment of asList(status.fragments)) {
      if (!fragment.reason || fragment.reason === 'complete' || fragment.state === 'idle') continue;
      byReason.set(fragment.reason, [...(byReason.get(fragment.reason) || []), fragment.id]);
    }
  }
  const waits = [...byReason].map(
      ([reason, ids]) =>
          `${ids.length === 1 ? 'Round of fragment' : 'Rounds of fragments'} ${idsText(ids)}: ${reason}`);
  setItems(
      byId('waits'), atMost(waits, 'more reasons, under “All fragments”').map((text, i) => ({text, i})), (line) => line.i, () => el('li'),
      (node, line) => setText(node, line.text));
}

const idsText = (ids) => ids.length <= 6 ? ids.join(', ') : `${ids.slice(0, 5).join(', ')} and ${ids.length - 5} more`;

function showAlarms(status) {
  setItems(
      byId('alarms'), asList(status.alarms).slice(0, 50), (alarm) => [alarm.name, alarm.site, alarm.fragment].join('/'),
      () => el('li'), (node, alarm) => {
        const [title, advice] = ALARMS[alarm.name] || [String(alarm.name).replaceAll('_', ' '), ''];
        const severity = alarm.severity === 'critical' ? 'critical' : 'warning';
        setAttribute(node, 'data-severity', severity);
        setPart(node, 'severity', `${MARKS[severity]} ${severity === 'critical' ? 'Critical' : 'Warning'}`);
        setPart(node, 'title', title, 'strong');
        setPart(node, 'where', [
          alarm.site && `site ${alarm.site}`, isNumber(alarm.fragment) && `fragment ${alarm.fragment}`
        ].filter(Boolean).join(', '));
        setPart(
            node, 'since',
            isNumber(alarm.since_unix_ms) ?
                `since ${clock(alarm.since_unix_ms)} (${ago(alarm.since_unix_ms, status.unix_ms)})` :
                '');
        setPart(node, 'said', alarm.text || '', 'p');
        setPart(node, 'advice', advice && `What to do: ${advice}`, 'p');
      });
}

const sum = (values) => {
  const numbers = values.filter(isNumber);
  return numbers.length ? numbers.reduce((a, b) => a + b, 0) : null;
};
const mean = (values) => {
  const numbers = values.filter(isNumber);
  return numbers.length ? sum(numbers) / numbers.length : null;
};
const quotient = (a, b) => isNumber(a) && isNumber(b) && b > 0 ? a / b : null;

// The run's own figures; `computed/…` are sums over the sites that the coordinator does not send.
function totals(status) {
  const sites = asList(status.sites);
  const present = presentSites(status);
  const sent = sum(sites.flatMap((site) => [site.up_bytes, site.down_bytes]));
  return {
    sent,
    reduction: quotient(status.float32_every_step_bytes, sent),
    up: sum(present.map((site) => site.up_bytes_per_s)),
    down: sum(present.map((site) => site.down_bytes_per_s)),
    utilization: mean(present.map((site) => site.utilization)),
    stall: mean(present.map((site) => quotient(site.stall_s, site.wall_s))),
    rounds: sum(asList(status.fragments).map((fragment) => fragment.version)),
  };
}

// How far the run is: of the site that is behind, or in tokens of all sites.
function progressText(status) {
  const {steps, tokens} = (status.config && status.config.run) || {};
  const present = presentSites(status);
  if (!present.length) return '';
  if (tokens > 0) {
    const done = Math.max(...asList(status.sites).map((site) => site.run_tokens || 0));
    return `${format('percent', Math.min(1, done / tokens))} of ${format('size', tokens)} tokens`;
  }
  const step = format('count', Math.min(...present.map((site) => site.step || 0)));
  const left = Math.max(...present.map((site) => secondsLeft(site, steps)));
  return (steps > 0 ? `step ${step} of ${format('count', steps)}` : `step ${step}`) +
      (left > 0 ? `, about ${duration(Math.ceil(left))} left` : '');
}

// At the pace since the site has entered; 0: it does not say.
function secondsLeft(site, steps) {
  if (!(steps > site.step) || !(site.step > 0)) return 0;
  if (site.tokens > 0 && site.tokens_per_s > 0) return (steps - site.step) * site.tokens / site.step / site.tokens_per_s;
  const first = known.first.get(site.name);
  if (!first || !(site.wall_s > first.wall_s + 5)) return 0;
  return (steps - site.step) * (site.wall_s - first.wall_s) / Math.max(1, site.step - first.step);
}

// As this page has seen it first, for sites that do not count tokens.
function noteFirst(status) {
  for (const site of presentSites(status)) {
    const first = known.first.get(site.name);
    if (!first || site.step < first.step || site.wall_s < first.wall_s)
      known.first.set(site.name, {step: site.step, wall_s: site.wall_s});
  }
}

// The held-out loss, or the mean of the sites' training losses.
function lossText(status) {
  const loss = status.eval_loss || {};
  if (isNumber(loss.latest)) {
    return `held-out loss ${isNumber(loss.start) ? `${format('loss', loss.start)} → ` : ''}${format('loss', loss.latest)}`;
  }
  const training = mean(asList(status.sites).map((site) => site.loss));
  return isNumber(training) ? `training loss ${format('loss', training)}` : '';
}

// While the run waits for sites: how the next one joins.
function showJoin(status) {
  const waits = status.state === 'waiting' && isNumber(status.unix_ms);
  setAttribute(byId('join'), 'hidden', waits ? null : '');
  if (!waits) return;
  const [host, port] = [String(status.grpc || '').replace(/:\d+$/, ''), String(status.grpc || '').replace(/^.*:/, '') || '7077'];
  const at = `${!host || host === '0.0.0.0' || host === '[::]' ? location.hostname || 'HOST' : host}:${port}`;
  const external = ((status.config || {}).model || {}).kind === 'external';
  setText(byId('join').querySelector('span'), 'The next site joins with:');
  setText(
      byId('join').querySelector('code'),
      external ? `CAUSEWAY_COORDINATOR=${at} CAUSEWAY_SITE=NAME python3 script.py` :
                 `causeway-worker --coordinator=${at} --site=NAME --data=FILE`);
}

// Sites that have left with all steps done, where no other is left.
function allFinished(status) {
  const sites = asList(status.sites);
  return status.state === 'done' && sites.length && sites.every((site) => stateOf(site) === 'finished') ? sites.length : 0;
}

function sitesTile(status) {
  const finished = allFinished(status);
  if (finished) {
    return [
      'contributing', 'Sites',
      [[['computed/finished', 'count', finished], ' of ', ['computed/all', 'count', finished]], ['finished']]
    ];
  }
  const present = ['computed/present', 'count', presentSites(status).length];
  const needed = ((status.config || {}).membership || {}).min_sites;
  if (status.state === 'waiting' && isNumber(needed)) {
    return [
      'contributing', 'Sites', [[present, ' of ', ['config/membership/min_sites', 'count', needed]], ['training starts with all of these']]
    ];
  }
  return [
    'contributing', 'Contributing sites',
    [
      [['contributing_sites', 'count', contributing(status)], ' of ', present],
      ['needs ', ['min_quorum', 'count', status.min_quorum], ' (min_quorum)']
    ]
  ];
}

// [key, title, lines]; a line is texts and figures in turn: a string, or [field, kind, value].
function tilesOf(status) {
  const all = totals(status);
  const loss = status.eval_loss || {};
  const tiles = [
    sitesTile(status),
    [
      'rounds', 'Rounds merged',
      [
        [['computed/rounds', 'count', all.rounds]],
        [`newest ${ago(newestMergeMs(status, known.timeline), status.unix_ms)}`], [progressText(status)]
      ]
    ],
    [
      'traffic', 'Sync bandwidth now',
      [['↑ ', ['computed/up', 'rate', all.up]], ['↓ ', ['computed/down', 'rate', all.down]]]
    ],
    [
      'sent', 'Traffic saved',
      [
        [
          wasRestarted(status) ? '≤ ' : '', ['computed/reduction', 'times', all.reduction],
          all.reduction === null ? '' : ' less'
        ],
        [
          ['computed/sent', 'bytes', all.sent],
          wasRestarted(status) ? ' since the restart, in all not ' : ' instead of ',
          ['float32_every_step_bytes', 'bytes', status.float32_every_step_bytes], ' of float32 at every step'
        ]
      ]
    ],
    [
      'loss', 'Eval loss',
      [
        [['eval_loss/latest', 'loss', loss.latest]],
        ['from ', ['eval_loss/start', 'loss', loss.start], ' nats per token']
      ]
    ],
    [
      'utilization', 'Utilization',
      [[['computed/utilization', 'percent', all.utilization]], ['stall ', ['computed/stall', 'percent', all.stall]]]
    ],
  ];
  return all.rounds > 0 ? tiles : tiles.slice(0, 1);  // before there is a round the others have nothing to say
}

function showTiles(status) {
  setItems(
      byId('tiles'), tilesOf(status), ([key]) => key, ([key]) => el('div', {class: 'tile', title: EXPLAIN_TILES[key]}),
      (tile, [, title, lines]) => {
        setPart(tile, 'title', title, 'dt');
        lines.forEach((line, i) => {
          const row = part(tile, i === 0 ? 'first' : `line-${i}`, 'dd');
          line.forEach((piece, j) => {
            const node = part(row, `piece-${j}`);
            if (typeof piece === 'string')
              setText(node, piece);
            else
              setFigure(node, ...piece);
          });
        });
      });
}

// Changes by `causewayctl set`: the newest in the heading, all of them below it.
function showSettings(status) {
  const changes = asList(status.settings).toReversed();
  setAttribute(byId('settings'), 'hidden', changes.length ? null : '');
  if (!changes.length) return;
  const text = (change) => `from step ${format('count', change.step)}: ${change.changes}`;
  setText(
      byId('settings').querySelector('summary'),
      `${plural(changes.length, 'change', 'changes')} of the settings, the last ${text(changes[0])}`);
  setItems(
      byId('settings').querySelector('ul'), changes, (change) => change.revision, () => el('li'),
      (item, change) => setText(item, `${dateTime(change.unix_ms)}, ${text(change)}`));
}
