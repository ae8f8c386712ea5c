/** Lines over time: as text for a terminal, and as an SVG that needs nothing but a viewer. */
import { inWords } from './figures.ts';

export interface Line {
  readonly name: string;
  /** x in seconds, ascending; y: null leaves a gap. */
  readonly points: ReadonlyArray<readonly [x: number, y: number | null]>;
}

export interface Panel {
  readonly title: string;
  readonly lines: readonly Line[];
}

const rows = 8;
const columns = 72;

/** One line, from zero to its most. */
export function textPlot(title: string, { points }: Line): string {
  const known = points.flatMap(([x, y]) => (y === null ? [] : [[x, y] as const]));
  if (known.length === 0) return `${title}: nothing`;
  const most = Math.max(...known.map(([, y]) => y), Number.MIN_VALUE);
  const end = Math.max(...known.map(([x]) => x));
  const grid = Array.from({ length: rows }, () => new Array<string>(columns).fill(' '));
  for (const [x, y] of known) {
    const row = rows - 1 - Math.min(rows - 1, Math.floor((y / most) * rows));
    const column = Math.min(columns - 1, Math.floor((x / end) * columns));
    grid[row]![column] = '*';
  }
  const top = inWords(most);
  const labels = grid.map((_, i) => (i === 0 ? top : i === rows - 1 ? '0' : '').padStart(top.length));
  const body = grid.map((cells, i) => `  ${labels[i]} |${cells.join('').trimEnd()}`);
  return [title, ...body, `  ${' '.repeat(top.length)} +${'-'.repeat(columns)} ${end} s`].join('\n');
}

const width = 860;
const panelHeight = 190;
const margin = { left: 76, right: 190, top: 30, bottom: 30 };
const colours = ['#1f6feb', '#d1242f', '#1a7f37', '#9a6700', '#8250df', '#57606a'];

/** All panels below each other, over one time. @param title what a reader hears who does not see them */
export function svgPlot(title: string, panels: readonly Panel[]): string {
  const height = panels.length * panelHeight;
  const drawn = panels.map((panel, i) => drawPanel(panel, i * panelHeight)).join('\n');
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="sans-serif" font-size="11">
<title>${title}</title>
<rect width="100%" height="100%" fill="#ffffff"/>
${drawn}
</svg>
`;
}

function drawPanel({ title, lines }: Panel, y0: number): string {
  const points = lines.flatMap((line) => line.points);
  const most = roundUp(Math.max(...points.map(([, y]) => y ?? 0), Number.MIN_VALUE));
  const end = Math.max(...points.map(([x]) => x), 1);
  const innerWidth = width - margin.left - margin.right;
  const innerHeight = panelHeight - margin.top - margin.bottom;
  const xOf = (x: number) => round(margin.left + (x / end) * innerWidth);
  const yOf = (y: number) => round(y0 + margin.top + innerHeight * (1 - y / most));
  const ticks = [0, 0.5, 1].map((share) => {
    const y = yOf(most * share);
    return (
      `<line x1="${margin.left}" x2="${margin.left + innerWidth}" y1="${y}" y2="${y}" stroke="#d0d7de"/>` +
      `<text x="${margin.left - 8}" y="${y + 4}" text-anchor="end" fill="#57606a">${inWords(most * share)}</text>`
    );
  });
  const times = [0, 0.5, 1].map(
    (share) =>
      `<text x="${xOf(end * share)}" y="${y0 + panelHeight - 12}" text-anchor="middle" fill="#57606a">${Math.round(end * share)} s</text>`,
  );
  const curves = lines.map(({ name, points: ofLine }, i) => {
    const colour = colours[i % colours.length];
    let path = '';
    let broken = true;
    for (const [x, y] of ofLine) {
      if (y !== null) path += `${broken ? 'M' : 'L'}${xOf(x)} ${yOf(y)}`;
      broken = y === null;
    }
    const labelY = y0 + margin.top + 12 + i * 15;
    return (
      `<path d="${path}" fill="none" stroke="${colour}" stroke-width="1.5"/>` +
      `<text x="${margin.left + innerWidth + 12}" y="${labelY}" fill="${colour}">${escapeText(name)}</text>`
    );
  });
  const heading = `<text x="${margin.left}" y="${y0 + 18}" font-weight="bold" fill="#24292f">${escapeText(title)}</text>`;
  return [heading, ...ticks, ...times, ...curves].join('\n');
}

/** To 1, 2 or 5 times a power of ten. */
function roundUp(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((each) => each >= value) ?? 10 * power;
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}

function escapeText(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;');
}
