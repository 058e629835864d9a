// The official JavaScript SDK at the same work as the other clients: `client.mjs SDK TASK COUNT [FILE]`, one JSON line as answer.

import assert from 'node:assert'
import { openAsBlob } from 'node:fs'
import { createRequire } from 'node:module'
import { performance } from 'node:perf_hooks'
import { pathToFileURL } from 'node:url'

const [sdk, task, countText, file] = process.argv.slice(2)
const count = Number(countText)
const { Sandbox } = await import(pathToFileURL(createRequire(`${sdk}/`).resolve('e2b')))

// Limit of concurrent small files.
const WINDOW = 16
const SMALL = 'x'.repeat(1024)
// One sandbox cannot run five hundred shells at once.
const SANDBOXES = 5
const LIFE = { timeoutMs: 600_000 }
const TIMEOUT = { requestTimeoutMs: 300_000 }

async function measured(work) {
  const cpu = process.cpuUsage()
  const started = performance.now()
  const samples = (await work()) ?? []
  const wall = (performance.now() - started) / 1000
  const { user, system } = process.cpuUsage(cpu)
  return { wall, cpu: (user + system) / 1e6, samples }
}

async function run(box) {
  const { stdout } = await box.commands.run('echo hi')
  assert.equal(stdout, 'hi\n')
}

async function windowed(total, one) {
  let next = 0
  const lane = async () => {
    while (next < total) await one(next++)
  }
  await Promise.all(Array.from({ length: WINDOW }, lane))
}

const tasks = {
  async commands() {
    const box = await Sandbox.create(LIFE)
    for (let i = 0; i < 5; i++) await run(box)
    const result = await measured(async () => {
      const samples = []
      for (let i = 0; i < count; i++) {
        const started = performance.now()
        await run(box)
        samples.push((performance.now() - started) / 1000)
      }
      return samples
    })
    await box.kill()
    return result
  },
  async concurrent() {
    const boxes = []
    for (let i = 0; i < SANDBOXES; i++) boxes.push(await Sandbox.create(LIFE))
    for (const box of boxes) await run(box)
    const result = await measured(async () => {
      await Promise.all(Array.from({ length: count }, (_, number) => run(boxes[number % SANDBOXES])))
    })
    for (const box of boxes) await box.kill()
    return result
  },
  async upload() {
    const box = await Sandbox.create(LIFE)
    await run(box)
    const content = await openAsBlob(file)
    const result = await measured(async () => {
      await box.files.write('big', content, { ...TIMEOUT, useOctetStream: true })
    })
    await box.kill()
    return result
  },
  async download() {
    const box = await Sandbox.create(LIFE)
    await box.files.write('big', await openAsBlob(file), { ...TIMEOUT, useOctetStream: true })
    let got = 0
    const result = await measured(async () => {
      for await (const chunk of await box.files.read('big', { ...TIMEOUT, format: 'stream' })) got += chunk.length
    })
    assert.equal(got, count)
    await box.kill()
    return result
  },
  async files() {
    const box = await Sandbox.create(LIFE)
    await run(box)
    const result = await measured(() =>
      windowed(count, async (number) => {
        await box.files.write(`small/${number}`, SMALL)
        assert.equal(await box.files.read(`small/${number}`), SMALL)
      }),
    )
    await box.kill()
    return result
  },
}

console.log(JSON.stringify(await tasks[task]()))
