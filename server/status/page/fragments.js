// The table of the fragments, and the codec with its reasons.

function drawHas(cell, fragment) {
  const names = asList(fragment.contributors);
  const count = isNumber(fragment.contributors_count) ? fragment.contributors_count : names.length;
  const shown = count > 8 ? names.slice(0, 7) : names;
  const rest = count > shown.length ? ` and ${count - shown.length} more` : '';
  setText(cell, count ? shown.join(', ') + rest : DASH);
}

const fragmentFigure = (name, kind) => ({
  key: `fragments.${name}`,
  title: termOf(`fragments.${name}`),
  figure: (fragment) => [`fragments/${fragment.id}/${name}`, kind, fragment[name]],
});

const FRAGMENTS = [
  {key: 'fragments.fragment', title: 'Fragment', draw: (cell, fragment) => setText(cell, String(fragment.id))},
  fragmentFigure('parameters', 'size'),
  fragmentFigure('version', 'count'),
  {key: 'fragments.state', title: 'State', draw: (cell, fragment) => setText(cell, String(fragment.state ?? DASH))},
  {key: 'fragments.has', title: 'Has', draw: drawHas},
  fragmentFigure('outer_correlation', 'number'),
  {key: 'fragments.reason', title: 'Why it waits', draw: (cell, fragment) => setText(cell, fragment.reason || DASH)},
  {
    key: 'fragments.digest',
    title: 'Digest',
    draw: (cell, fragment) => {
      setAttribute(cell, 'class', 'digest');
      setText(cell, fragment.digest || DASH);
    }
  },
];

function showFragments(status) {
  const fragments = asList(status.fragments);
  const summary = byId('fragments-details').firstElementChild;
  setText(summary, `All fragments (${fragments.length}), their versions and what they wait for`);
  setTable(
      byId('fragments'), 'fragments-table', FRAGMENTS, fragments, (fragment) => fragment.id,
      'There are none before the first site has joined.');
}

function codecText(codec, direction) {
  if (!codec[direction]) return DASH;
  return `${codec[direction]}${
      codec[`auto_${direction}`] ? ' (chosen by the coordinator: auto)' :
      codec[`reason_${direction}`] ? ' (chosen by the coordinator)' : ' (as run.yaml says)'}`;
}

function showCodec(status) {
  const codec = status.codec || {};
  const lines = [
    ['up', '↑ Up', codecText(codec, 'up'), codec.reason_up],
    ['down', '↓ Down', codecText(codec, 'down'), codec.reason_down],
  ];
  setItems(byId('codec'), lines, ([key]) => key, () => el('div'), (row, [direction, title, name, reason]) => {
    setPart(row, 'title', title, 'dt');
    const text = part(row, 'text', 'dd');
    setPart(text, 'name', name, 'strong');
    setPart(text, 'why', reason ? `Why: ${reason}` : '', 'p');
    const feedback = part(text, 'feedback', 'p');
    setPart(feedback, 'lead', 'Error feedback β = ');
    setFigure(part(feedback, 'beta'), `codec/feedback_${direction}`, 'number', codec[`feedback_${direction}`]);
  });
}
