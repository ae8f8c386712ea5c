/** Works through all with so many at a time; rejects with the first failure. */
export async function eachWith(inFlight, all, work) {
  const left = all.values();
  const slot = async () => {
    for (const each of left) await work(each);
  };
  await Promise.all(Array.from({ length: inFlight }, slot));
}
