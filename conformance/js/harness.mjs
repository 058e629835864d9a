// Scenarios, and the loop that runs them: the JavaScript twin of ../python/harness.py, same JSON lines.
// Invariants: every scenario has a deadline; sandboxes it made are killed when it ends, passed or not.

import { randomUUID } from 'node:crypto'
import http from 'node:http'
import https from 'node:https'

const DEFAULT_DEADLINE = 40
const RUN_ID = randomUUID().slice(0, 8)
const scenarios = []

/** Registers a scenario that proves `rows` of calls.json. */
export function proves(rows, name, run, options = {}) {
  scenarios.push({ rows, name, run, deadline: DEFAULT_DEADLINE, quick: false, ...options })
}

/** Rows of calls this SDK does not have. */
export function absent(...rows) {
  proves(rows, `absent.${rows[0]}`, undefined)
}

export function equal(got, expected, what) {
  const [left, right] = [stable(got), stable(expected)]
  if (left !== right) throw new Error(`${what}: expected ${short(right)}, got ${short(left)}`)
}

export function check(condition, what) {
  if (!condition) throw new Error(what)
}

function stable(value) {
  return JSON.stringify(value, (_, v) =>
    v && typeof v === 'object' && !Array.isArray(v) && !(v instanceof Date)
      ? Object.fromEntries(Object.entries(v).sort(([a], [b]) => (a < b ? -1 : 1)))
      : v,
  )
}

const short = (text) => (text?.length > 160 ? text.slice(0, 157) + '…' : text)

export const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000))

/** Repeats `test` until it gives something true; fails with `what`, a text or what makes one, after `deadline` seconds. */
export async function until(test, deadline, what, pause = 0.1) {
  const end = Date.now() + deadline * 1000
  for (;;) {
    const value = await test()
    if (value) return value
    if (Date.now() >= end) throw new Error(`after ${deadline} s still not: ${typeof what === 'function' ? what() : what}`)
    await sleep(pause)
  }
}

/** The error that a promise must fail with; fails otherwise, and names the actual result. */
export async function raises(kind, promise) {
  let result
  try {
    result = await promise
  } catch (error) {
    if (error instanceof kind) return error
    throw new Error(`expected ${kind.name}, got ${error?.constructor?.name}: ${error?.message}`)
  }
  throw new Error(`expected ${kind.name}, got the answer ${short(stable(result) ?? 'undefined')}`)
}

/** One plain HTTP request on its own connection. */
export function request(method, url, headers = {}, body = undefined) {
  return new Promise((resolve, reject) => {
    const call = (url.startsWith('https:') ? https : http).request(url, { method, headers, agent: false, timeout: 20_000 }, (response) => {
      const chunks = []
      response.on('data', (chunk) => chunks.push(chunk))
      response.on('error', reject)
      response.on('end', () => {
        const content = Buffer.concat(chunks)
        resolve({ status: response.statusCode, headers: response.headers, text: content.toString(), body: content })
      })
    })
    call.on('timeout', () => call.destroy(new Error('no answer within 20 s')))
    call.on('error', reject)
    call.end(body)
  })
}

/** A multipart body with one part `file`, and its headers. */
export function formFile(name, content) {
  const boundary = 'sandbar-conformance-boundary'
  const body =
    `--${boundary}\r\nContent-Disposition: form-data; name="file"; filename="${name}"\r\n` +
    `Content-Type: application/octet-stream\r\n\r\n${content}\r\n--${boundary}--\r\n`
  return [{ 'Content-Type': `multipart/form-data; boundary=${boundary}` }, body]
}

/** What one scenario uses: the SDK's exports, and helpers that clean up after it. */
class Scope {
  constructor({ sdk, interpreter, module }, name) {
    this.sdk = sdk
    this.interpreter = interpreter
    // Where the SDK is, for programs of their own.
    this.module = module
    this.Sandbox = sdk.Sandbox
    this.mark = `${RUN_ID}-js-${name}`
    this.url = process.env.SANDBAR_CONFORMANCE_URL.replace(/\/$/, '')
    this.sandboxUrl = process.env.SANDBAR_CONFORMANCE_SANDBOX_URL.replace(/\/$/, '')
    this.key = process.env.E2B_API_KEY
    this.cycles = Number(process.env.SANDBAR_CONFORMANCE_CYCLES ?? 20)
    this.made = []
  }

  /** `Sandbox.create`, marked so that listings can tell this scenario's sandboxes from all others. */
  async create({ metadata, template = 'base', through = this.Sandbox, ...options } = {}) {
    const marked = { timeoutMs: 120_000, ...options, metadata: { mark: this.mark, ...metadata } }
    return this.adopt(await through.create(template, marked))
  }

  adopt(box) {
    this.made.push(box.sandboxId)
    return box
  }

  /** A request to a port of a sandbox, by the routing headers. */
  port(box, port, path = '/', headers = {}) {
    const routing = { 'E2b-Sandbox-Id': box.sandboxId, 'E2b-Sandbox-Port': String(port) }
    return request('GET', this.sandboxUrl + path, { ...routing, ...headers })
  }

  async state(box) {
    return (await this.Sandbox.getInfo(box.sandboxId)).state
  }

  /** Ids of a listing, page by page. */
  async pages(paginator) {
    const pages = []
    while (paginator.hasNext) {
      pages.push((await paginator.nextItems()).map((info) => info.sandboxId))
      check(pages.length < 500, 'the listing does not end')
    }
    return pages
  }

  async close() {
    for (const id of this.made) {
      await request('DELETE', `${this.url}/sandboxes/${id}`, { 'X-API-Key': this.key }).catch(() => {})
    }
  }
}

async function outcome(scenario, packages) {
  const fields = { scenario: scenario.name, rows: scenario.rows, reason: '', seconds: 0 }
  if (!scenario.run) return { ...fields, outcome: 'absent' }
  const scope = new Scope(packages, scenario.name)
  const started = Date.now()
  let timer
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no end within ${scenario.deadline} s`)), scenario.deadline * 1000)
  })
  try {
    await Promise.race([scenario.run(scope), late])
    fields.outcome = 'passed'
  } catch (error) {
    fields.outcome = 'failed'
    fields.reason = `${error?.constructor?.name}: ${error?.message}`.split('\n')[0].slice(0, 300)
    fields.trace = String(error?.stack ?? error).slice(-6000)
  } finally {
    clearTimeout(timer)
  }
  fields.seconds = (Date.now() - started) / 1000
  await scope.close()
  return fields
}

/** Runs the registered scenarios, several at once, long ones first. */
export async function runAll(packages, { concurrency, quick, filter, list }) {
  const chosen = scenarios
    .filter((scenario) => scenario.name.includes(filter) && (scenario.quick || !quick))
    .sort((a, b) => b.deadline - a.deadline)
  const write = (message) => process.stdout.write(JSON.stringify(message) + '\n')
  if (list) {
    for (const scenario of chosen) process.stdout.write(`${scenario.name} ${scenario.rows.join(' ')}\n`)
    return
  }
  // Streams of killed sandboxes fail without an awaiting promise.
  process.on('unhandledRejection', () => {})
  write({ total: chosen.length })
  const queue = [...chosen]
  const worker = async () => {
    for (let scenario = queue.shift(); scenario; scenario = queue.shift()) write(await outcome(scenario, packages))
  }
  await Promise.all(Array.from({ length: concurrency }, worker))
  write({ finished: true })
}
