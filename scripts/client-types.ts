/**
 * Writes `src/client/api-types.ts`, the types of the client, from `openapi/openapi.json`: `npm run client-types`. With `--check`
 * it writes nothing and exits 1 where the file differs from the document. Run after `npm run openapi`, which makes the document.
 */
import { fileURLToPath } from 'node:url';
import { generateApi } from 'swagger-typescript-api';
import { keepGenerated } from './generated-file.ts';

const documentFile = fileURLToPath(new URL('../openapi/openapi.json', import.meta.url));

const header = `/**
 * Shapes of the API, generated from openapi/openapi.json by \`npm run client-types\`: a change here is lost, make it in the
 * schemas of the routes.
 */
`;

/** The types as they are kept in the repository; the same document always gives the same bytes. */
export async function clientTypesText(): Promise<string> {
  const { files } = await generateApi({
    input: documentFile,
    output: false,
    silent: true,
    generateClient: false,
    extractRequestParams: true,
    extractRequestBody: true,
    extractResponseBody: true,
    generateUnionEnums: true,
    // What may be any JSON is for the reader to look at, not to trust.
    codeGenConstructs: ({ Keyword }) => ({ Keyword: { ...Keyword, Any: 'unknown' } }),
  });
  const [file, ...others] = files;
  if (file === undefined || others.length > 0) throw new Error(`the generator gave ${files.length} files, not one`);
  return header + file.fileContent;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  await keepGenerated('src/client/api-types.ts', await clientTypesText(), 'the document', 'npm run client-types');
}
