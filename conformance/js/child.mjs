// Runs the scenarios under the npm package installed in --sdk. Started by ../run.py.

import { readFileSync, readdirSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { parseArgs } from 'node:util'

import { runAll } from './harness.mjs'

const { values } = parseArgs({
  options: {
    sdk: { type: 'string' },
    concurrency: { type: 'string', default: '3' },
    quick: { type: 'boolean', default: false },
    filter: { type: 'string', default: '' },
    list: { type: 'boolean', default: false },
  },
})

// Bare imports resolve from this file's folder; the SDK lives in the cache, so it is imported by its path.
function find(name) {
  const root = join(values.sdk, 'node_modules', name)
  const { module } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'))
  return pathToFileURL(join(root, module)).href
}
const module = find('e2b')
const sdk = await import(module)
const interpreter = await import(find('@e2b/code-interpreter'))

const folder = join(dirname(fileURLToPath(import.meta.url)), 'scenarios')
for (const file of readdirSync(folder).sort()) await import(pathToFileURL(join(folder, file)))
await runAll({ sdk, interpreter, module }, { ...values, concurrency: Number(values.concurrency) })
process.exit(0)
