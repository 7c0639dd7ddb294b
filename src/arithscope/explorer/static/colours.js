// Colour scales.

const VIRIDIS = [
  [68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142],
  [31, 158, 137], [53, 183, 121], [110, 206, 88], [181, 222, 43], [253, 231, 37],
];
const DIVERGING = [
  [5, 48, 97], [33, 102, 172], [67, 147, 195], [146, 197, 222], [247, 247, 247],
  [244, 165, 130], [214, 96, 77], [178, 24, 43], [103, 0, 31],
];

function stops(list) {
  return (t) => {
    const x = Math.min(1, Math.max(0, t)) * (list.length - 1);
    const i = Math.min(list.length - 2, Math.floor(x));
    const f = x - i;
    return list[i].map((c, k) => Math.round(c + f * (list[i + 1][k] - c)));
  };
}

export const viridis = stops(VIRIDIS);
export const diverging = stops(DIVERGING);

export function css([r, g, b]) {
  return `rgb(${r},${g},${b})`;
}

/** Text colour with the better contrast on a background: black or white. */
export function text_colour([r, g, b]) {
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#000" : "#fff";
}

function quantiles(values, levels) {
  const known = Float32Array.from(values.filter((v) => !Number.isNaN(v))).sort();
  if (!known.length) return levels.map(() => 0);
  return levels.map((q) => known[Math.round(q * (known.length - 1))]);
}

/** A scale from the 2 % to the 98 % quantile of the values: diverging around zero, or from dark to bright. */
export function colour_scale(values, centred) {
  let [low, high] = quantiles(values, [0.02, 0.98]);
  if (centred) {
    high = Math.max(Math.abs(low), Math.abs(high)) || 1e-9;
    low = -high;
  } else if (!(high > low)) {
    high = low + 1e-6;
  }
  const map = centred ? diverging : viridis;
  return { low, high, colour: (v) => map((v - low) / (high - low)) };
}

/** A colour of the style sheet as [r, g, b], for canvases. */
export function page_colour(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const digits = /^#(..)(..)(..)$/.exec(text);
  return digits ? digits.slice(1).map((x) => parseInt(x, 16)) : [128, 128, 128];
}
