// Rounds on a time axis, a row for each fragment.
//
//   row   ▐▌▌▌████│▒▒▒│██      sending, with a tick where a contribution arrived; waiting; merging
//             ▔▔▔▔▔▔▔▔▔▔▔▔     taking: sites download the update
//
// From GET /timeline (or event timeline), drawn anew with each: at most 256 rounds. All times are of the coordinator's
// clock.

const ROW = {
  height: 26,
  bar: 12,
  thin: 5,
  left: 130,
  right: 14,
  axis: 24
};
const WINDOWS = [
  ['auto', 'the last rounds'], [30, '30 s'], [120, '2 min'], [600, '10 min'], [3600, '1 h'], ['all', 'all that is kept']
];
const KEYS = [['send', 'sending'], ['wait', 'waiting'], ['merge', 'merging'], ['take', 'taking (sites download)']];

class Timeline {
  constructor(parent) {
    this.window = 'auto';
    this.selected = null;  // key of a round
    this.opened = false;   // its details
    this.empty = el('p', {class: 'muted'});
    this.svg = svg('svg', {
      class: 'chart timeline',
      tabindex: '0',
      role: 'application',
      'aria-roledescription': 'timeline of rounds',
      'aria-label': 'Rounds of each fragment over time. Arrow keys go from round to round, Enter opens one.'
    });
    this.quiet = el('p', {class: 'muted'});
    this.live = el('p', {class: 'unseen', 'aria-live': 'polite'});
    this.details = el('div', {class: 'details', hidden: true});
    this.scroll = el('div', {class: 'scroll tall'}, this.svg);
    parent.append(this.empty, this.scroll, this.quiet, this.live, this.details);
    this.svg.addEventListener('keydown', (event) => this.onKey(event));
    this.svg.addEventListener('pointermove', (event) => this.onPointer(event));
    this.svg.addEventListener('pointerleave', () => showNote(null, null));
    this.svg.addEventListener('click', (event) => this.onClick(event));
    new ResizeObserver(() => this.draw()).observe(parent);
    this.makeControls();
  }

  makeControls() {
    const select = byId('window');
    select.append(...WINDOWS.map(([value, text]) => el('option', {value}, text)));
    select.addEventListener('change', () => {
      this.window = Number(select.value) || select.value;
      this.draw();
    });
    byId('timeline-keys')
        .append(...KEYS.map(
            ([kind, text]) =>
                el('span', {class: 'key'},
                   svg('svg', {width: 26, height: 12, 'aria-hidden': 'true'}, ...this.patterns(`key-${kind}`),
                       this.bar(kind, 0, 26, kind === 'take' ? -ROW.bar + 3 : 0, `key-${kind}`)),
                   text)));
  }

  // Waiting is hatched and taking is thin, so that hue is not all that tells them apart.
  patterns(prefix) {
    return [svg(
        'defs', {},
        svg('pattern', {
          id: `${prefix}-hatch`,
          width: 6,
          height: 6,
          patternUnits: 'userSpaceOnUse',
          patternTransform: 'rotate(45)'
        },
            svg('rect', {width: 6, height: 6, class: 'hatch-ground'}),
            svg('rect', {width: 2.5, height: 6, class: 'hatch-line'})))];
  }

  bar(kind, from, to, top, prefix) {
    const thin = kind === 'take';
    return svg('rect', {
      class: `bar ${kind}`,
      x: from.toFixed(1),
      width: Math.max(1.5, to - from).toFixed(1),
      y: thin ? top + ROW.bar + 1 : top,
      height: thin ? ROW.thin : ROW.bar,
      fill: kind === 'wait' ? `url(#${prefix}-hatch)` : null
    });
  }

  set(timeline, status) {
    this.told = timeline !== undefined;
    this.timeline = timeline;
    this.states = new Map(asList(status && status.fragments).map((fragment) => [fragment.id, fragment]));
    this.draw();
  }

  draw() {
    const timeline = this.timeline;
    const rounds = asList(timeline && timeline.rounds);
    setAttribute(this.scroll, 'hidden', rounds.length ? null : '');
    setText(
        this.empty,
        rounds.length         ? '' :
            timeline === null ? 'This coordinator does not tell of its rounds.' :
                                'No round has begun yet.');
    const width = this.scroll.parentElement.clientWidth;
    if (!rounds.length || width < 80) return this.hideDetails();
    const now = isNumber(timeline.unix_ms) ? timeline.unix_ms : Date.now();
    const [begin, end] = spanOf(rounds, now, this.window);
    const left = width < 600 ? 64 : ROW.left;
    const x = (ms) => linear(begin, Math.max(end, begin + 1), left, width - ROW.right)(Math.min(ms, end));
    const fragments = [...new Set(rounds.map((round) => round.fragment))].sort((a, b) => a - b);
    const height = fragments.length * ROW.height + ROW.axis;
    setAttribute(this.svg, 'width', width);
    setAttribute(this.svg, 'height', height);
    this.drawn = [];
    const rows = fragments.map(
        (fragment, i) => this.drawRow(
            rounds.filter((round) => round.fragment === fragment), i * ROW.height + 4, x, begin, now, left, width));
    this.svg.replaceChildren(
        ...this.patterns('bars'), ...timeAxis(x, begin, end, width - left, 0, fragments.length * ROW.height),
        ...(end < now ?
                [] :
                [svg('line', {class: 'now', x1: x(now), x2: x(now), y1: 0, y2: fragments.length * ROW.height})]),
        ...rows);
    const quiet = now - lastEventMs(rounds);
    setText(
        this.quiet,
        end < now ? `Nothing has happened for ${duration(Math.round(quiet / 1000))}; shown is what happened last.` :
                    '');
    this.showDetails(now);
  }

  drawRow(rounds, top, x, begin, now, left, width) {
    const fragment = rounds[0].fragment;
    const known = this.states.get(fragment);
    const label = width < 600 ? `${fragment}: v${rounds[rounds.length - 1].version}` :
                                `fragment ${fragment}${known ? `, v${known.version}` : ''}`;
    const row =
        svg('g', {}, svg('text', {x: left - 10, y: top + 11, 'text-anchor': 'end', class: 'label'}, label),
            svg('line',
                {class: 'ground', x1: left, x2: width - ROW.right, y1: top + ROW.bar + 0.5, y2: top + ROW.bar + 0.5}));
    rounds.forEach((round, i) => {
      if (endOf(round, now) < begin) return;
      const key = `${round.fragment}/${round.version}`;
      const stretches = stretchesOf(round, now, i === rounds.length - 1).filter((stretch) => stretch[2] >= begin);
      if (!stretches.length) return;
      const at = (ms) => x(Math.max(begin, ms));
      const group = svg('g', {class: 'round', 'data-round': key, 'data-selected': key === this.selected ? '' : null});
      const [from, to] = [at(stretches[0][1]), at(most(stretches.map((stretch) => stretch[2])))];
      group.append(
          svg('rect', {
            class: 'target',
            x: from - 2,
            width: Math.max(8, to - from + 4),
            y: top - 3,
            height: ROW.bar + ROW.thin + 7,
            rx: 3
          }),
          ...stretches.map(([kind, a, b]) => this.bar(kind, at(a), at(b), top, 'bars')),
          ...asList(round.arrived)
              .filter((one) => isNumber(one[2]) && one[2] >= begin)
              .map(
                  (one) => svg(
                      'line', {class: 'arrival', x1: at(one[2]), x2: at(one[2]), y1: top - 1, y2: top + ROW.bar + 1})));
      row.append(group);
      this.drawn.push({key, round, from, top});
    });
    return row;
  }

  names() {
    return asList(this.timeline && this.timeline.sites).map(String);
  }

  roundAt(event) {
    const group = event.target.closest && event.target.closest('[data-round]');
    return group && this.drawn.find((one) => one.key === group.getAttribute('data-round'));
  }

  onPointer(event) {
    const found = this.roundAt(event);
    showNote(
        found ? [event.clientX, event.clientY] : null,
        found ? roundText(found.round, this.names(), this.timeline.unix_ms) : null);
  }

  onClick(event) {
    const found = this.roundAt(event);
    this.opened = Boolean(found) && !(this.opened && this.selected === found.key);
    this.select(found ? found.key : null);
    if (event.pointerType === 'touch') showNote(null, null);  // the details say it all
  }

  select(key) {
    this.selected = key;
    this.draw();
    const found = this.drawn.find((one) => one.key === key);
    if (found) setText(this.live, roundText(found.round, this.names(), this.timeline.unix_ms).join('. '));
  }

  onKey(event) {
    const step = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
    const current = this.drawn && this.drawn.find((one) => one.key === this.selected);
    if (event.key === 'Escape')
      this.opened = false;
    else if (event.key === 'Enter' || event.key === ' ')
      this.opened = Boolean(current) && !this.opened;
    else if (!step || !this.drawn || !this.drawn.length)
      return;
    event.preventDefault();
    if (!step) return this.draw();
    if (!current) return this.select(this.drawn[this.drawn.length - 1].key);
    const rest = this.drawn.filter(
        (one) => step[0] ? one.top === current.top && (one.from - current.from) * step[0] > 0 :
                           (one.top - current.top) * step[1] > 0);
    const distance = (one) => step[0] ? Math.abs(one.from - current.from) :
                                        Math.abs(one.top - current.top) * 1e5 + Math.abs(one.from - current.from);
    rest.sort((a, b) => distance(a) - distance(b));
    if (rest.length) this.select(rest[0].key);
  }

  hideDetails() {
    setAttribute(this.details, 'hidden', '');
  }

  // Each site's times in the round that was opened, as distances from its first chunk.
  showDetails(now) {
    const round = asList(this.timeline.rounds).find((one) => `${one.fragment}/${one.version}` === this.selected);
    if (!this.opened || !round) return this.hideDetails();
    const names = this.names();
    setAttribute(this.details, 'hidden', null);
    const [title, ...lines] = roundText(round, names, now);
    setPart(this.details, 'title', `${title}; its first chunk came at ${dateTime(round.first_unix_ms)}`, 'h3');
    setItems(
        part(this.details, 'facts', 'ul'), lines.map((text, i) => ({text, i})), (line) => line.i, () => el('li'),
        (node, line) => setText(node, line.text));
    setTable(
        part(this.details, 'sites', 'div'), 'round-table', ROUND_COLUMNS, roundRows(round, names), (row) => row.site,
        '');
    if (!this.details.querySelector('button')) {
      const close = el('button', {type: 'button'}, 'Close');
      close.addEventListener('click', () => {
        this.opened = false;
        this.hideDetails();
        this.svg.focus();
      });
      this.details.append(close);
    }
  }
}

let timelineChart = null;

function showTimeline(timeline, status) {
  timelineChart = timelineChart || new Timeline(byId('timeline'));
  timelineChart.set(timeline, status);
}
