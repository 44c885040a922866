// The page: what comes from the feed goes to the sections.

const asList = (value) => Array.isArray(value) ? value : [];

// The page's knowledge: the latest answers, and a few figures of earlier ones (bounded; see Rates).
const known = {
  status: null,
  timeline: null,
  first: new Map()
};

const SECTIONS = [
  ['health', (status) => showHealth(status, known.timeline)],
  ['tiles', showTiles],
  ['settings', showSettings],
  ['presence', showPresence],
  ['bandwidth', showBandwidth],
  ['training', showTraining],
  ['fragments', showFragments],
  ['losses', showLosses],
  ['codec', showCodec],
];

function onStatus(status) {
  if (status === null || typeof status !== 'object') return;
  noteEpoch(known.status, status);
  known.status = status;
  rates.note(status);
  noteFirst(status);
  document.title = titleOf(status);
  setText(byId('run'), String(status.run_id ?? ''));
  setText(byId('about'), aboutText(status));
  setAttribute(document.body, 'data-unix-ms', isNumber(status.unix_ms) ? status.unix_ms : null);
  for (const [name, show] of SECTIONS) {
    try {
      show(status);
    } catch (error) {
      console.error(`section ${name}:`, error);  // a section that fails on an unknown version's answer leaves the others
    }
  }
}

function onTimeline(timeline) {
  known.timeline = timeline;
  showTimeline(timeline, known.status);
}

function titleOf(status) {
  const alarms = asList(status.alarms).length;
  return `${alarms ? `(${alarms}) ` : ''}${status.state || DASH} · ${status.run_id || 'Causeway'}`;
}

function aboutText(status) {
  const parts = [];
  if (isNumber(status.parameters))
    parts.push(`${RULES.size(status.parameters)} parameters in ${
        plural(asList(status.fragments).length, 'fragment', 'fragments')}`);
  const mode = status.mode || (status.config && status.config.sync && status.config.sync.mode);
  if (mode) parts.push(`${mode} mode`);
  if (isNumber(status.num_shards) && status.num_shards > 1) parts.push(`shard ${status.shard} of ${status.num_shards}`);
  if (isNumber(status.uptime_s)) parts.push(`coordinator up for ${duration(Math.floor(status.uptime_s))}`);
  if (isNumber(status.epoch)) parts.push(`epoch ${status.epoch}`);
  const copies = status.copies;
  if (copies && copies.set) {
    const hook = copies.hook_ended ? `, its hook ended ${copies.hook_ended} in ${RULES.seconds(copies.hook_s)}` : '';
    parts.push(`copy of ${dateTime(copies.unix_ms)}${hook}`);
  }
  if (status.version) parts.push(`version ${status.version}`);
  return parts.join(' · ');
}

// The coordinator was started anew while the page was open: totals of the network begin at 0 again.
function noteEpoch(before, now) {
  if (before && isNumber(before.epoch) && isNumber(now.epoch) && now.epoch !== before.epoch) rates.clear();
}

const LINK_TEXT = {
  live: 'live',
  polling: 'asks every 2 s',
  lost: 'no connection',
};

function onLink(link, lostSince) {
  const node = byId('link');
  setAttribute(node, 'data-link', link);
  setText(node, LINK_TEXT[link] || link);
  setAttribute(
      node, 'title',
      link === 'polling' ?
          'The stream of events was refused or cut: the page asks for the figures every 2 s, and tries the stream again now and then.' :
          null);
  const lost = byId('lost');
  setAttribute(lost, 'hidden', link === 'lost' ? null : '');
  setAttribute(document.body, 'data-lost', link === 'lost' ? '' : null);
  // Without how long it is: an alert that changes each second would be read aloud each second.
  if (link === 'lost') {
    setText(
        lost,
        `No connection to the coordinator since ${clock(lostSince)}. ${
            known.status ?
                'The figures below are the last that came. Sites train on, and the page comes back by itself.' :
                'The page tries again every 2 s.'}`);
  }
}

const THEMES = ['auto', 'light', 'dark'];

const darkWanted = window.matchMedia('(prefers-color-scheme: dark)');

function setTheme(theme) {
  const shown = theme === 'auto' ? (darkWanted.matches ? 'dark' : 'light') : theme;
  setAttribute(document.documentElement, 'data-theme', shown);
  setText(byId('theme'), `Theme: ${theme}`);
}

function startTheme() {
  let theme = 'auto';
  try {
    theme = localStorage.getItem('causeway-theme') || theme;
  } catch {
    // Storage is not allowed: the choice lasts as long as the page.
  }
  if (!THEMES.includes(theme)) theme = 'auto';
  setTheme(theme);
  darkWanted.addEventListener('change', () => setTheme(theme));
  byId('theme').addEventListener('click', () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    setTheme(theme);
    try {
      localStorage.setItem('causeway-theme', theme);
    } catch {
      // as above
    }
  });
}

startTheme();
explainAll();
new Feed({onStatus, onTimeline, onLink}).start();
