// Where the figures come from.
//
//   EventSource('events') ── event status, each second; event timeline, each 2 s ──► the page
//   when that is refused (503: all streams are taken), cut or silent: GET status and timeline each 2 s, and the stream
//   is retried now and then. When those fail too, the page shows "no connection since …" and keeps retrying.
//
// A hidden tab holds no stream, because the number of streams is limited. Only the latest answer is kept.

const ANSWER_MS = 5000;        // an answer that takes longer has failed
const SILENT_MS = 5000;        // a stream without an event for this long is broken, whatever TCP says
const STREAM_AGAIN_MS = 3000;  // after a stream that worked; twice that at most, so that many pages do not come at once
const STREAM_REFUSED_MS = 20000;  // after one that never did: the streams are taken, or there are none

// A proxy may show the page at /causeway as well as at /causeway/, from which alone the addresses beside it are right.
if (!location.pathname.endsWith('/')) history.replaceState(null, '', `${location.pathname}/${location.search}${location.hash}`);

async function getJson(path) {
  const cut = new AbortController();
  const timer = setTimeout(() => cut.abort(), ANSWER_MS);
  try {
    const answer = await fetch(path, {cache: 'no-store', signal: cut.signal});
    if (answer.status === 404) return null;  // the coordinator has no such page
    if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
    return await answer.json();
  } finally {
    clearTimeout(timer);
  }
}

class Feed {
  // handlers: onStatus(status), onTimeline(timeline or null), onLink('live' | 'polling' | 'lost', since when lost in ms
  // or null).
  constructor(handlers) {
    this.handlers = handlers;
    this.link = 'connecting';
    this.lostSince = null;
    this.stream = null;
    this.heardMs = 0;  // of the stream
    this.streamAgainMs = 0;
    this.turn = 0;  // rises when answers that are under way come too late to count
    this.polling = false;
  }

  start() {
    document.addEventListener('visibilitychange', () => this.onVisibility());
    setInterval(() => this.onTick(), 1000);
    this.openStream();
  }

  setLink(link) {
    this.link = link;
    if (link !== 'lost')
      this.lostSince = null;
    else if (this.lostSince === null)
      this.lostSince = Date.now();
    this.handlers.onLink(link, this.lostSince);
  }

  openStream() {
    if (!window.EventSource) return;
    const stream = new EventSource('events');
    this.stream = stream;
    this.heardMs = Date.now();
    let worked = false;
    const take = (handler) => (event) => {
      if (this.stream !== stream) return;
      this.heardMs = Date.now();
      if (!worked) ++this.turn;
      worked = true;
      const value = JSON.parse(event.data);
      if (this.link !== 'live') this.setLink('live');
      handler(value);
    };
    stream.addEventListener('status', take(this.handlers.onStatus));
    stream.addEventListener('timeline', take(this.handlers.onTimeline));
    stream.onerror = () => {
      if (this.stream !== stream) return;
      this.closeStream(worked ? STREAM_AGAIN_MS : STREAM_REFUSED_MS);
      this.poll();
    };
  }

  closeStream(againMs) {
    if (this.stream) this.stream.close();
    this.stream = null;
    this.streamAgainMs = Date.now() + againMs * (1 + Math.random());
    if (this.link === 'live') this.link = 'cut';
  }

  async poll() {
    if (this.polling) return;
    this.polling = true;
    const turn = this.turn;
    try {
      const status = await getJson('status');
      if (turn !== this.turn) return;
      if (status === null) throw new Error('status: 404');
      if (this.link === 'lost') this.streamAgainMs = Math.min(this.streamAgainMs, Date.now() + 1000 * Math.random());
      this.setLink('polling');
      this.handlers.onStatus(status);
      const timeline = await getJson('timeline');
      if (turn === this.turn) this.handlers.onTimeline(timeline);
    } catch (error) {
      console.warn(error);
      if (turn === this.turn) this.setLink('lost');
    } finally {
      this.polling = false;
    }
  }

  onTick() {
    if (document.hidden) return;
    const now = Date.now();
    if (this.stream && now > this.heardMs + SILENT_MS) this.stream.onerror();
    if (!this.stream && now >= this.streamAgainMs) this.openStream();
    this.odd = !this.odd;
    if (this.link !== 'live' && !this.odd) this.poll();
    if (this.link === 'lost') this.setLink('lost');  // it tells for how long
  }

  onVisibility() {
    ++this.turn;
    this.closeStream(0);
    if (!document.hidden) this.openStream();
  }
}
