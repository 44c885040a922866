// The meaning of each figure, in the words of docs/glossary.md: shown as a tooltip at the figure and as a list under
// its table.

const SITE = ['Site', 'One datacenter with one replica of the model.'];

const EXPLAIN = {
  presence: {
    site: SITE,
    alive: [
      'Alive',
      'Whether the coordinator hears from the site. joining: it fetches the anchors. training: it takes steps. draining: it finishes what is in flight, and leaves. gone: rounds close without it. A site that falls silent keeps its place until its lease ends.'
    ],
    contributes: [
      'Contributes',
      'Whether the open rounds expect a contribution of this site. A site that has just joined does from the first version after its entry.'
    ],
    last_merged: [
      'Last merged',
      'The newest round that a contribution of this site is in. Merged means that it has moved the global parameters.'
    ],
    missed: [
      'Last missed',
      'The newest round that was decided without this site although it was active, and why. The site\'s training is not lost: it stays in the site and comes with its next contribution.'
    ],
    merged: [
      'Merged of sent',
      'How many of the contributions that the site has sent were merged. Skipped: sends that were due while an earlier one was unresolved; that training comes with the next one.'
    ],
    weight: [
      'Share of weight',
      'The mean of the site\'s share of a round\'s weight, over the rounds since the coordinator\'s start. With three equal sites each has a third.'
    ],
    staleness: [
      'Staleness', 'How many rounds its last merged contribution was behind: 0 means that it was made for the round\'s own version.'
    ],
    digests: [
      'Anchors',
      'Whether the site holds the same bits of the global parameters as the coordinator, by their digests of the same version. A fragment whose update is on its way counts as neither.'
    ],
  },
  bandwidth: {
    site: SITE,
    now: [
      'Now',
      'Bytes a second of payload over the last seconds. Up is from the site to the coordinator, down back to the site. The drawing beside it has the last two minutes that this page has seen.'
    ],
    mean: ['Mean', 'Since the coordinator\'s start.'],
    peak:
        ['Peak', 'The busiest second since the coordinator\'s start: what the link must bear so that nothing queues.'],
    total: ['Total', 'Payload since the coordinator\'s start, in this direction.'],
    float32: [
      'float32 every step',
      'The bytes that this site would have sent and received if the sites had averaged float32 gradients after every step: 2 × 4 bytes × parameters × steps.'
    ],
    saved: [
      'Saved',
      'Those bytes divided by the bytes that the site did send and receive: how many times less. Bytes count from the coordinator’s start and steps from the run’s: after a restart it is an upper bound, and has a ≤.'
    ],
  },
  training: {
    site: SITE,
    step: ['Inner step', 'Steps of the inner optimizer that the site has taken.'],
    tokens: ['Tokens', 'Tokens that the site has trained on.'],
    tokens_per_s: ['Tokens/s', 'Tokens a second over the last steps.'],
    loss: ['Loss', 'Recent training loss in nats per token. Divide by 0.693 for bits.'],
    utilization: [
      'Utilization',
      'The share of time that the site spent computing. The rest to 100 % is stall, joining and pauses.'
    ],
    stall: [
      'Stall',
      'Total time that the step loop has waited for updates that were due. If it grows, choose a longer fragment_sync_delay (τ), a cheaper codec, or a longer sync_every (H).'
    ],
    slack: ['Slack', 'The opposite of stall: how much earlier than needed the last update came.'],
    delay: [
      'τ',
      'fragment_sync_delay: inner steps between sending an outer gradient and mixing in its update. Where sites choose it themselves, the largest of the fragments’.'
    ],
    residual: [
      'Residual norm',
      'The length of what the codec has dropped and error feedback will add to the next sends. It should settle; if it keeps growing, the codec is too coarse.'
    ],
    in_flight: [
      'In flight', 'Fragments whose contribution is being encoded or sent, or whose update has not been mixed in yet.'
    ],
  },
  timeline: {
    send: [
      'Sending', 'From the first chunk of a contribution to the last contribution that arrived. A tick at each arrival.'
    ],
    wait: [
      'Waiting',
      'Nothing is in transit and the round is not decided: a site has not begun to send, or the grace runs. The reason is in the note of the bar.'
    ],
    merge: ['Merging', 'From the decision to the merged parameters. The decision is durable before the merge begins.'],
    take: [
      'Taking',
      'The thinner bar below: sites download the update, from the merge until the last site has all of it. Each mixes it in τ steps after its send.'
    ],
    keys: [
      'Reading it',
      'Point at a bar, or tap it, for its times; click or press Enter for each site. With the keyboard: arrows go from round to round and from fragment to fragment, Escape closes.'
    ],
  },
  fragments: {
    fragment: ['Fragment', 'A subset of the parameters that is synced together.'],
    parameters: ['Parameters', 'How many values it has.'],
    version: ['Version', 'The number of rounds that the fragment has been through. Version 0 is the start.'],
    state: [
      'State',
      'idle: no contribution to the next round yet. open: some have arrived. grace: there are enough for a quorum, and the round waits a little for others. merging: decided.'
    ],
    has: ['Has', 'Sites whose contribution to the open round is admitted: complete, valid and durable.'],
    outer_correlation: [
      'Correlation',
      'How alike the outer gradients of successive rounds are, over 16 rounds: 1 the same, 0 unrelated, below 0 each takes back part of the previous one; then a smaller outer learning rate or momentum helps.'
    ],
    reason: ['Why it waits', 'The coordinator\'s own words.'],
    digest: ['Digest', 'A checksum of the anchor: comparing two of them shows whether two machines hold the same bits.'],
  },
  loss: {
    eval: [
      'eval', 'Loss of the global parameters on held-out text that no site trains on. It says whether the run learns.'
    ],
    sites: [
      'The sites’',
      'Each site’s training loss, of its own parameters on its own data. They may differ; they should fall together.'
    ],
    unit: ['Unit', 'Nats per token. With a text file a token is a byte. Divide by 0.693 for bits.'],
  },
  codec: {
    codec: [
      'Codec',
      'It turns float32 values into fewer bits for the network. Up is towards the coordinator, down back to the sites.'
    ],
    feedback: [
      'Error feedback',
      'β: the share of the values dropped by the codec that is added to the next send. 1: nothing is lost, only late. 0: off.'
    ],
    auto: [
      'auto',
      'The coordinator takes the best allowed codec that fits a round on the slowest link, again for each round.'
    ],
  },
};

const EXPLAIN_TILES = {
  contributing:
      'Sites that the open rounds expect, out of those in the run; and how many a round needs at least (min_quorum).',
  rounds: 'Rounds merged, of all fragments together. One round syncs one fragment.',
  traffic: 'Payload of all sites together, over the last seconds.',
  sent:
      'Payload of all sites, both directions, since the coordinator\'s start; and how many times less that is than averaging float32 gradients after every step would have sent.',
  loss: 'Loss of the global parameters on held-out text, in nats per token, and what it was at the start.',
  utilization:
      'Mean over the sites in the run of the share of time spent computing, and the share of time spent waiting for updates that were due (stall).',
};

function explanation(key) {
  const [table, name] = key.split('.');
  return EXPLAIN[table] && EXPLAIN[table][name] ? EXPLAIN[table][name][1] : '';
}

const termOf = (key) => {
  const [table, name] = key.split('.');
  return EXPLAIN[table][name][0];
};

function explainAll() {
  for (const list of document.querySelectorAll('[data-explains]')) {
    list.append(
        ...Object.values(EXPLAIN[list.dataset.explains]).flatMap(([term,
                                                                   text]) => [el('dt', {}, term), el('dd', {}, text)]));
  }
}
