// What the counters show: a run's figures as series over its steps, a few hundred points however long it is.
//
//     steps     0 1 2 3 | 4 5 6 7 | 8 ...         so many steps a point that there are at most as many as wanted:
//     points    mean    | mean    |               states are averaged over them, times too, tokens per second end there

const SECOND = 1e9; // ns

/**
 * Figures of a StepLog, at most `most` points: {steps, seconds, seqs} of the points, {perPoint} steps in each, and
 * {series: name -> a number or null for each}.
 */
function counterSeries(log, map, most) {
  const { steps } = log;
  const perPoint = Math.max(1, Math.ceil(steps.length / most));
  const points = { steps: [], seconds: [], seqs: [], perPoint, series: {} };
  const so = { lookedUp: 0, hit: 0, tokens: 0, oldest: 0 };
  for (let start = 0; start < steps.length; start += perPoint) {
    const group = steps.slice(start, start + perPoint);
    const last = group.at(-1);
    points.steps.push(last.step);
    points.seconds.push(last.t / SECOND);
    points.seqs.push(last.last);
    for (const [name, value] of Object.entries(figures(group, map, so, steps))) {
      (points.series[name] ??= []).push(value);
    }
  }
  return points;
}

const percent = share => (share === null ? null : 100 * share);

/** The figures of a few steps; `so` is what was added up so far. */
function figures(group, map, so, steps) {
  for (const { flow } of group) {
    so.lookedUp += flow.lookedUp;
    so.hit += flow.hit;
    so.tokens += flow.generated;
  }
  const now = group.at(-1).t;
  while (steps[so.oldest].t <= now - SECOND) so.tokens -= steps[so.oldest++].flow.generated; // those of the last second
  const total = name => group.reduce((sum, step) => sum + step.flow[name], 0);
  const mean = of => {
    const values = group.flatMap(step => (step.memory && of(step.memory)) ?? []);
    return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
  };
  const milliseconds = (ns, number) => (number ? ns / number / 1e6 : null);
  const [used, cached] = [mean(memory => memory.used), mean(memory => memory.cached)];
  return {
    used, cached, blank: used === null ? null : map.num_blocks - used - cached,
    ...Object.fromEntries(["paged", ...Object.keys(RESERVATIONS)].map((name, i) =>
      [name, percent(mean(memory => memory.wasted[i]))])),
    hits: percent(so.lookedUp ? so.hit / so.lookedUp : null),
    tokens: so.tokens,
    first: milliseconds(total("firstNs"), total("firsts")),
    gap: milliseconds(total("gapNs"), total("gaps")),
    running: mean(memory => memory.running),
    waiting: group.reduce((sum, step) => sum + step.waiting, 0) / group.length,
  };
}
