/**
 * Plain text tables for a terminal: columns as wide as their widest cell, no borders.
 */

/** One line per row, indented by two; numbers stand to the right. Rows may be of different lengths. */
export function table(rows: ReadonlyArray<ReadonlyArray<string | number>>): string {
  const widths: number[] = [];
  for (const row of rows) {
    for (const [column, cell] of row.entries()) widths[column] = Math.max(widths[column] ?? 0, String(cell).length);
  }
  const lines = rows.map((row) => {
    const cells = row.map((cell, column) => {
      const width = widths[column] ?? 0;
      return typeof cell === 'number' ? String(cell).padStart(width) : cell.padEnd(width);
    });
    return `  ${cells.join('   ')}`.trimEnd();
  });
  return lines.join('\n');
}
