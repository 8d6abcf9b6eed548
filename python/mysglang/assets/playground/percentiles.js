// Percentiles of what happened lately, from histograms that only ever grow.

/** What was added to a histogram between two snapshots of it; null if it began anew meanwhile. */
export function difference(newer, older) {
  const counts = newer.counts.map((count, at) => count - (older?.counts[at] ?? 0));
  return counts.some((count) => count < 0) ? null : { bounds: newer.bounds, counts };
}

/**
 * The value below which a part `q` of what was seen lies, in the unit of the bounds; null if nothing was seen.
 *
 * Within a bucket values are taken to lie evenly, as Prometheus does in histogram_quantile. Above the last bound nothing
 * is known, and that bound is the answer.
 */
export function quantile({ bounds, counts }, q) {
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (!total) return null;
  const rank = q * total;
  let below = 0;
  for (const [at, count] of counts.entries()) {
    if (count && below + count >= rank) {
      if (at === bounds.length) return bounds.at(-1);
      const low = at ? bounds[at - 1] : 0;
      return low + ((bounds[at] - low) * (rank - below)) / count;
    }
    below += count;
  }
  return bounds.at(-1);
}
