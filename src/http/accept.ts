/** Which form of an answer a client asks for (RFC 9110, section 12.5.1), where there is more than one. */

/** Whether NDJSON is named, and no less wanted than JSON; a wildcard stands for JSON. */
export function prefersNdjson(accept: string | undefined): boolean {
  const wanted = (type: string) => {
    const range = (accept ?? '').split(',').find((each) => each.split(';', 1)[0]!.trim().toLowerCase() === type);
    if (range === undefined) return 0;
    const weight = /;\s*q\s*=\s*([\d.]+)/i.exec(range)?.[1];
    return weight === undefined ? 1 : Number(weight);
  };
  const ofNdjson = wanted('application/x-ndjson');
  return ofNdjson > 0 && ofNdjson >= wanted('application/json');
}
