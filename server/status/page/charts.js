// The common parts of the two charts: scales, ticks, axes, and a line chart with a reader's line. Plain SVG, drawn anew
// when its figures change; between two drawings a chart keeps only which series are hidden.

// Steps of 1, 2 or 5 times a power of ten, about `count` of them from low to high.
function niceTicks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) ticks.push(i * step);
  return {ticks, step};
}

const TIME_STEPS_MS = [
  1,    2,     5,     10,    20,    50,     100,    200,    500,     1e3,     2e3,     5e3,     10e3,     15e3,    30e3,
  60e3, 120e3, 300e3, 600e3, 900e3, 1800e3, 3600e3, 7200e3, 14400e3, 21600e3, 43200e3, 86400e3, 172800e3, 604800e3
];

function timeTicks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  const step = TIME_STEPS_MS.find((candidate) => candidate >= raw) || TIME_STEPS_MS[TIME_STEPS_MS.length - 1];
  const ticks = [];
  const zone = step >= 3600e3 ? new Date(low).getTimezoneOffset() * 60e3 : 0;  // hours and days begin where people's do
  for (let t = Math.ceil((low - zone) / step) * step + zone; t <= high; t += step) ticks.push(t);
  return {ticks, step};
}

const tickText = (unixMs, stepMs) => stepMs >= 86400e3 ? dateTime(unixMs).slice(5, 10) : clock(unixMs, stepMs);

const linear = (low, high, from, to) => (value) =>
    from + (high === low ? 0.5 : (value - low) / (high - low)) * (to - from);

function timeAxis(x, low, high, width, top, bottom) {
  const {ticks, step} = timeTicks(low, high, Math.max(2, Math.floor(width / 90)));
  const right = x(high) - 22;  // a label further right would be cut off
  return ticks.map(
      (tick) => svg(
          'g', {class: 'tick'}, svg('line', {x1: x(tick), x2: x(tick), y1: top, y2: bottom}),
          svg('text', {x: Math.min(x(tick), right), y: bottom + 15, 'text-anchor': 'middle'}, tickText(tick, step))));
}

// Eight hues; beyond them, and for those who do not see hues, dashes differ as well.
const DASHES = ['', '6 3', '2 3', '9 3 2 3', '1 3', '12 4', '4 2 1 2', '8 2'];
const strokeOf = (index) =>
    ({class: `line hue-${index % 8}`, 'stroke-dasharray': DASHES[(index + Math.floor(index / 8)) % 8] || null});

// A floating note beside the pointer; one for the whole page.
function showNote(node, lines) {
  const note = byId('note') || document.body.appendChild(el('div', {id: 'note', role: 'tooltip', hidden: true}));
  if (!lines) return setAttribute(note, 'hidden', '');
  note.replaceChildren(...lines.map((line, i) => el(i === 0 ? 'strong' : 'div', {}, line)));
  setAttribute(note, 'hidden', null);
  const [x, y] = node;
  const box = note.getBoundingClientRect();
  note.style.left = `${Math.max(8, Math.min(x + 14, document.documentElement.clientWidth - box.width - 8))}px`;
  note.style.top = `${y + box.height + 24 > window.innerHeight ? Math.max(8, y - box.height - 14) : y + 14}px`;
}

// series: [{name, index, points: [[unix_ms, y], …] in time order}]; yText: y → text; names and figures under the
// pointer are shown.
class LineChart {
  constructor(parent, label, yText) {
    this.label = label;
    this.yText = yText;
    this.hidden = new Set();
    this.svg = svg('svg', {role: 'img', class: 'chart', tabindex: '0'});
    this.keys = el('div', {class: 'keys'});
    parent.append(this.keys, this.svg);
    this.svg.addEventListener('pointermove', (event) => this.point(event));
    this.svg.addEventListener('pointerdown', (event) => this.point(event));
    this.svg.addEventListener('pointerleave', () => this.leave());
    new ResizeObserver(() => this.draw()).observe(parent);
  }

  set(series, summary) {
    const fingerprint =
        JSON.stringify(series.map(({name, points}) => [name, points.length, points[0], points[points.length - 1]]));
    this.series = series;
    setAttribute(this.svg, 'aria-label', `${this.label}: ${summary}`);
    if (fingerprint === this.fingerprint) return;
    this.fingerprint = fingerprint;
    const names = new Set(series.map(({name}) => name));
    for (const name of this.hidden)
      if (!names.has(name)) this.hidden.delete(name);
    this.drawKeys();
    this.draw();
  }

  drawKeys() {
    setItems(
        this.keys, this.series, (one) => one.name,
        (one) => {
          const key =
              el('button', {type: 'button', class: 'key'},
                 svg('svg', {width: 26, height: 10, 'aria-hidden': 'true'},
                     svg('line', {x1: 1, x2: 25, y1: 5, y2: 5, ...strokeOf(one.index)})),
                 el('span'));
          key.addEventListener('click', () => {
            if (!this.hidden.delete(one.name)) this.hidden.add(one.name);
            this.drawKeys();
            this.draw();
          });
          return key;
        },
        (key, one) => {
          const last = one.points.length ? one.points[one.points.length - 1][1] : null;
          setText(key.lastElementChild, `${one.name} ${isNumber(last) ? this.yText(last) : DASH}`);
          setAttribute(key, 'aria-pressed', String(!this.hidden.has(one.name)));
        });
  }

  draw() {
    const width = this.svg.parentElement.clientWidth;
    const shown = (this.series || []).filter((one) => !this.hidden.has(one.name) && one.points.length);
    setAttribute(this.svg, 'hidden', shown.length ? null : '');
    if (!shown.length || width < 50) return;
    const height = 240, left = 46, right = 12, top = 10, bottom = height - 24;
    const all = shown.flatMap((one) => one.points);
    let [low, high] = [Math.min(...all.map((p) => p[1])), Math.max(...all.map((p) => p[1]))];
    if (high - low < 1e-6) [low, high] = [low - 0.05, high + 0.05];
    const [begin, end] = [Math.min(...all.map((p) => p[0])), Math.max(...all.map((p) => p[0]))];
    const {ticks, step} = niceTicks(low, high, 4);
    const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    const y = linear(Math.min(low, ticks[0] ?? low), Math.max(high, ticks[ticks.length - 1] ?? high), bottom, top);
    const x = linear(begin, end, left + 4, width - right);
    this.scales = {x, y, shown, left, width, top, bottom, begin, end};
    setAttribute(this.svg, 'width', width);
    setAttribute(this.svg, 'height', height);
    this.reader = svg('g', {class: 'reader'});
    this.svg.replaceChildren(
        ...ticks.map(
            (tick) =>
                svg('g', {class: 'tick'}, svg('line', {x1: left, x2: width - right, y1: y(tick), y2: y(tick)}),
                    svg('text', {x: left - 6, y: y(tick) + 4, 'text-anchor': 'end'}, tick.toFixed(decimals)))),
        ...timeAxis(x, begin, end, width - left, bottom, bottom + 4), ...shown.flatMap((one) => drawLine(one, x, y)),
        this.reader);
  }

  point(event) {
    if (!this.scales) return;
    const {x, y, shown, left, width, top, bottom, begin, end} = this.scales;
    const at = event.clientX - this.svg.getBoundingClientRect().left;
    const time = begin + (at - left - 4) / Math.max(1, width - 16 - left) * (end - begin);
    const found = shown.map((one) => ({one, point: nearest(one.points, time)}));
    this.reader.replaceChildren(
        svg('line', {x1: at, x2: at, y1: top, y2: bottom}),
        ...found.map(
            ({one, point}) =>
                svg('circle', {cx: x(point[0]), cy: y(point[1]), r: 3.5, class: `dot hue-${one.index % 8}`})));
    showNote([event.clientX, event.clientY], [
      dateTime(Math.min(end, Math.max(begin, time))),
      ...found.slice(0, 20).map(
          ({one, point}) =>
              `${one.name}: ${this.yText(point[1])}${point[2] ? ` (${point[2]})` : ''} at ${clock(point[0])}`)
    ]);
  }

  leave() {
    showNote(null, null);
    if (this.reader) this.reader.replaceChildren();
  }
}

function drawLine(one, x, y) {
  if (one.points.length === 1)
    return [svg('circle', {cx: x(one.points[0][0]), cy: y(one.points[0][1]), r: 4, class: `dot hue-${one.index % 8}`})];
  const path =
      one.points.map((point, i) => `${i ? 'L' : 'M'}${x(point[0]).toFixed(1)} ${y(point[1]).toFixed(1)}`).join('');
  return [svg('path', {d: path, fill: 'none', ...strokeOf(one.index)})];
}

function nearest(points, time) {
  let [low, high] = [0, points.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= time)
      low = middle;
    else
      high = middle;
  }
  return time - points[low][0] <= points[high][0] - time ? points[low] : points[high];
}
