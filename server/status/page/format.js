// How figures become text: three significant digits with a unit, and an en dash where there is no figure.
// tests/page/rules.py has the same rules and checks the page by them. Every rule accepts any value from the server:
// anything but a finite number becomes a dash, so that neither an older coordinator nor a run before its first round
// shows NaN.

const DASH = '–';
const THIN = '\u202f';  // narrow no-break space, between groups of digits

const isNumber = (value) => typeof value === 'number' && Number.isFinite(value);

// 12345.6 → "12 346"
function grouped(value) {
  const text = String(Math.abs(Math.round(value))).replace(/\B(?=(\d{3})+$)/g, THIN);
  return Math.round(value) < 0 ? `−${text}` : text;
}

// Three digits: 0.0123, 1.23, 12.3, 123; beyond, whole numbers.
function significant(value) {
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size < 0.001) return value.toExponential(2).replace('e-', 'e−').replace(/^-/, '−');
  const text = Number(size.toPrecision(3)) >= 1000 ? grouped(size) : size.toPrecision(3);
  return value < 0 ? `−${text}` : text;
}

// Three digits in the unit that leaves at most three before the point.
function scaled(value, units) {
  let unit = 0;
  while (unit + 1 < units.length && Number(Math.abs(value).toPrecision(3)) >= 1000) {
    value /= 1000;
    ++unit;
  }
  return `${unit === 0 ? grouped(value) : significant(value)} ${units[unit]}`;
}

const BYTE_UNITS = ['B', 'kB', 'MB', 'GB', 'TB', 'PB', 'EB'];
const RATE_UNITS = BYTE_UNITS.map((unit) => `${unit}/s`);
const BIT_UNITS = ['bit/s', 'kbit/s', 'Mbit/s', 'Gbit/s', 'Tbit/s'];
const COUNT_UNITS = ['', 'k', 'M', 'G', 'T'];

function duration(seconds) {
  const size = Math.abs(seconds);
  if (size === 0) return '0 s';
  if (size < 0.9995) return `${significant(seconds * 1000)} ms`;
  if (size < 59.95) return `${significant(seconds)} s`;
  const whole = Math.round(size);
  const [first, second] = whole < 3600 ? [[60, 'min'], [1, 's']] :
      whole < 86400                    ? [[3600, 'h'], [60, 'min']] :
                                         [[86400, 'd'], [3600, 'h']];
  const text = `${Math.floor(whole / first[0])} ${first[1]} ${Math.floor((whole % first[0]) / second[0])} ${second[1]}`;
  return seconds < 0 ? `−${text}` : text;
}

// By kind, as elements name it in data-kind.
const RULES = {
  bytes: (value) => scaled(value, BYTE_UNITS),
  rate: (value) => scaled(value, RATE_UNITS),
  bits: (value) => scaled(value * 8, BIT_UNITS),
  count: grouped,
  size: (value) => scaled(value, COUNT_UNITS).trim(),
  seconds: duration,
  percent: (value) => `${(value * 100).toFixed(1)} %`,
  loss: (value) => value.toFixed(3),
  number: significant,
  per_s: (value) => `${significant(value)} /s`,
  times: (value) => `${significant(value)}×`,
  text: (value) => value,
};

function format(kind, value) {
  if (kind === 'text') return typeof value === 'string' && value !== '' ? value : DASH;
  return isNumber(value) ? RULES[kind](value) : DASH;
}

// Clock times, in the browser's zone. `step_ms` is the distance of an axis' ticks: below a second they need decimals.
function clock(unixMs, stepMs = 1000) {
  if (!isNumber(unixMs)) return DASH;
  const date = new Date(unixMs);
  const two = (value) => String(value).padStart(2, '0');
  const text = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  if (stepMs >= 1000) return stepMs >= 60000 ? text.slice(0, 5) : text;
  const decimals = stepMs >= 100 ? 1 : stepMs >= 10 ? 2 : 3;
  return `${text}.${String(date.getMilliseconds()).padStart(3, '0').slice(0, decimals)}`;
}

function dateTime(unixMs) {
  if (!isNumber(unixMs)) return DASH;
  const date = new Date(unixMs);
  const two = (value) => String(value).padStart(2, '0');
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock(unixMs)}`;
}

// How long before `now` something was, both by the coordinator's clock: this machine's may be wrong.
function ago(unixMs, now) {
  if (!isNumber(unixMs) || !isNumber(now)) return DASH;
  const seconds = Math.max(0, (now - unixMs) / 1000);
  if (seconds < 1) return 'just now';
  return `${seconds < 59.5 ? `${Math.round(seconds)} s` : duration(Math.round(seconds))} ago`;
}

const plural = (count, one, many) => `${isNumber(count) ? grouped(count) : DASH} ${count === 1 ? one : many}`;
