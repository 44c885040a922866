// The curves of the loss: of the global parameters on held-out text, and of each site's training.

const lossPoints = (points) => points.filter((point) => isNumber(point[0]) && isNumber(point[1]));

let lossChart = null;

function showLosses(status) {
  const parent = byId('losses');
  const history = asList(status.eval_loss && status.eval_loss.history);
  const series = [{
    name: 'eval',
    index: 0,
    points: lossPoints(history.map((point) => [point.unix_ms, point.loss, `version ${point.version}`]))
  }];
  asList(status.sites).forEach((site, i) => {
    series.push({
      name: site.name,
      index: i + 1,
      points: lossPoints(asList(site.loss_history).map((point) => [point[0], point[1]]))
    });
  });
  const drawn = series.filter((one) => one.points.length);
  if (!lossChart) {
    parent.append(
        el('p', {id: 'loss-figures'}), el('p', {id: 'loss-by-site'}), el('p', {id: 'no-loss', class: 'muted'}));
    lossChart =
        new LineChart(parent.appendChild(el('div')), 'Loss in nats per token over time', (value) => RULES.loss(value));
  }
  setText(byId('no-loss'), drawn.length ? '' : 'No loss has been reported yet.');
  showLossFigures(byId('loss-figures'), status);
  lossChart.set(
      drawn,
      drawn
          .map(
              (one) =>
                  `${one.name} ${RULES.loss(one.points[0][1])} to ${RULES.loss(one.points[one.points.length - 1][1])}`)
          .join(', '));
}

// The eval loss of the run; or of each site, where each holds out data of its own.
function showLossFigures(node, status) {
  const loss = status.eval_loss;
  const sites = Object.entries(status.eval_loss_by_site || {});
  setText(
      byId('loss-by-site'),
      [
        loss === null ? `No eval loss of the run: ${status.eval_loss_reason || ''}.` : '',
        ...sites.map(([name, one]) => `${name}: eval loss ${RULES.loss(one.loss)} on its own data.`)
      ].join(' ').trim());
  node.hidden = loss === null;
  // A run whose sites turn out to hold out data of their own no longer has a loss: its figures leave the page.
  if (loss === null) node.replaceChildren();
  else showRunLoss(node, loss || {});
}

function showRunLoss(node, loss) {
  setPart(node, 'lead', 'Eval loss at the start ');
  setFigure(part(node, 'start', 'strong'), 'eval_loss/start', 'loss', loss.start);
  setPart(node, 'middle', ', now ');
  setFigure(part(node, 'latest', 'strong'), 'eval_loss/latest', 'loss', loss.latest);
  const versions = asList(loss.versions).filter(isNumber);
  const [least, most] = [Math.min(...versions), Math.max(...versions)];
  setPart(
      node, 'unit',
      ` nats per token${
          versions.length ? `, of the fragments' version${least === most ? ` ${least}` : `s ${least} to ${most}`}` :
                            ''}.`);
}
