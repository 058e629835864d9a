// Listing, pause and resume, traffic to ports.

import { createHash, randomBytes } from 'node:crypto'

import { absent, check, equal, proves, raises, request, sleep, until } from '../harness.mjs'

absent('pause.strict')

const BOOT_ID = '/proc/sys/kernel/random/boot_id'

async function serve(t, box, text, headers = {}) {
  await box.files.write('www/index.html', text)
  const command = 'cd www && exec python3 -m http.server 8000 --bind 127.0.0.1'
  await (await box.commands.run(command, { background: true, timeoutMs: 0 })).disconnect()
  await until(async () => (await t.port(box, 8000, '/', headers)).text === text, 15, 'the server in the sandbox answers')
}

proves(['list', 'list.paging', 'list.state', 'list.order', 'list.started_after', 'list.template', 'list.metadata'], 'listing.all', async (t) => {
  const odd = { 'a b&c=d%20': 'x/y+z=ž &%25?' }
  const boxes = []
  for (let n = 0; n < 4; n += 1) boxes.push(await t.create({ metadata: n === 0 ? odd : {} }))
  await boxes[1].pause()
  await boxes[2].pause()
  const made = boxes.map((box) => box.sandboxId)
  const listed = async (query = {}, options = {}) =>
    (await t.pages(t.Sandbox.list({ query: { metadata: { mark: t.mark }, ...query }, ...options }))).flat()
  const pages = await t.pages(t.Sandbox.list({ query: { metadata: { mark: t.mark } }, limit: 1 }))
  equal(pages.filter((page) => page.length).map((page) => page.length), [1, 1, 1, 1], 'sizes of the pages')
  equal(pages.flat(), [...made].reverse(), 'each once, youngest first')
  equal(await listed({ state: ['running'] }), [made[3], made[0]], 'running only')
  equal(await listed({ state: ['paused'] }), [made[2], made[1]], 'paused only')
  equal((await listed({ state: ['running', 'paused'] })).length, 4, 'both states')
  equal(await listed({}, { order: 'asc', limit: 3 }), made, 'ascending, over pages')
  const second = (await boxes[1].getInfo()).startedAt
  equal(await listed({ startedAfter: second }), [made[3], made[2], made[1]], 'started at or after the second one')
  equal((await listed({ template: 'base' })).length, 4, 'by template')
  equal(await listed({ template: 'no-such-template' }), [], 'an unknown template gives an empty list')
  equal(await listed({ metadata: { mark: t.mark, ...odd } }), [made[0]], 'odd characters in key and value')
}, { quick: true })

proves(['pause', 'connect.resume', 'pause.again', 'class.pause', 'beta_pause'], 'pausing.memory', async (t) => {
  const box = await t.create({ timeoutMs: 300_000 })
  await serve(t, box, 'still here')
  const sleeper = await box.commands.run('sleep 3600', { background: true, timeoutMs: 0 })
  await sleeper.disconnect()
  const boot = await box.files.read(BOOT_ID)
  equal(await box.pause(), true, 'pause')
  equal(await box.pause(), false, 'second pause')
  equal([await box.isRunning(), await t.state(box)], [false, 'paused'], 'a paused sandbox')
  equal((await t.port(box, 8000)).status, 502, 'traffic to a paused sandbox')
  const same = await t.Sandbox.connect(box.sandboxId, { timeoutMs: 300_000 })
  equal([same.sandboxId, await box.isRunning()], [box.sandboxId, true], 'after resume, by the first instance')
  equal(await box.files.read(BOOT_ID), boot, 'boot id after a resume with memory')
  check((await box.commands.list()).some((one) => one.pid === sleeper.pid), 'the process is still there')
  equal((await t.port(box, 8000)).text, 'still here', 'the server from before the pause')
  equal(await t.Sandbox.pause(box.sandboxId), true, 'class-level pause')
  await box.connect()
  equal(await box.betaPause(), true, 'betaPause')
}, { quick: true, deadline: 60 })

proves(['pause.filesystem', 'connect.on_resume'], 'pausing.filesystem', async (t) => {
  const box = await t.create({ timeoutMs: 300_000 })
  const content = randomBytes(300_000)
  await box.files.write('kept.bin', content.buffer.slice(content.byteOffset, content.byteOffset + content.length))
  const boots = [await box.files.read(BOOT_ID)]
  await box.pause({ keepMemory: false })
  await box.connect()
  check(Buffer.compare(Buffer.from(await box.files.read('kept.bin', { format: 'bytes' })), content) === 0, 'bytes kept')
  boots.push(await box.files.read(BOOT_ID))
  equal(await box.commands.list(), [], 'no process is left')
  await box.pause()
  await box.connect({ onResume: 'reboot' })
  boots.push(await box.files.read(BOOT_ID))
  equal(new Set(boots).size, 3, 'three boots')
}, { deadline: 60 })

proves(['auto_pause', 'auto_pause.filesystem'], 'pausing.auto_pause', async (t) => {
  const kept = await t.create({ timeoutMs: 3000, lifecycle: { onTimeout: 'pause' } })
  const fresh = await t.create({ timeoutMs: 3000, lifecycle: { onTimeout: { action: 'pause', keepMemory: false } } })
  for (const box of [kept, fresh]) await box.files.write('kept.txt', 'kept')
  const [a, b] = [await kept.files.read(BOOT_ID), await fresh.files.read(BOOT_ID)]
  for (const box of [kept, fresh]) {
    await until(async () => (await t.state(box)) === 'paused', 6, 'paused by its time-out')
    await box.connect({ timeoutMs: 60_000 })
    equal(await box.files.read('kept.txt'), 'kept', 'file after the auto-pause')
  }
  equal([(await kept.files.read(BOOT_ID)) === a, (await fresh.files.read(BOOT_ID)) === b], [true, false], 'same boot?')
})

proves(['auto_resume'], 'pausing.auto_resume', async (t) => {
  const box = await t.create({ lifecycle: { onTimeout: 'pause', autoResume: true } })
  await serve(t, box, 'woken')
  await box.pause()
  equal((await t.port(box, 8000)).text, 'woken', 'answer of the woken sandbox')
  equal(await t.state(box), 'running', 'state after the traffic')
})

proves(['pause.cycles'], 'pausing.cycles', async (t) => {
  const box = await t.create({ timeoutMs: 600_000 })
  const expected = {}
  for (let n = 0; n < t.cycles; n += 1) {
    const content = randomBytes(50_000 + n).toString('base64')
    expected[`cycle/${n}`] = createHash('sha256').update(content).digest('hex')
    await box.files.write(`cycle/${n}`, content)
    await box.pause()
    await box.connect({ timeoutMs: 600_000 })
  }
  const { stdout } = await box.commands.run('sha256sum cycle/*')
  const got = Object.fromEntries(stdout.trim().split('\n').map((line) => line.split(/\s+/).reverse()))
  equal(got, expected, `digests after ${t.cycles} cycles`)
}, { deadline: 240 })

proves(['ports', 'get_host'], 'traffic.ports', async (t) => {
  const box = await t.create()
  const shut = await t.port(box, 8000)
  equal(
    [shut.status, JSON.parse(shut.text)],
    [502, { sandboxId: box.sandboxId, message: 'The sandbox is running but port is not open', port: 8000, code: 502 }],
    'nothing listens',
  )
  await serve(t, box, 'served')
  const host = box.getHost(8000)
  check(host.startsWith(`8000-${box.sandboxId}.`), `getHost gives ${host}`)
  equal((await request('GET', `${t.sandboxUrl}/`, { Host: host })).text, 'served', 'routed by host name')
  await box.kill()
  equal((await t.port(box, 8000)).status, 502, 'a killed sandbox')
}, { quick: true })

proves(['ports.private'], 'traffic.private', async (t) => {
  const box = await t.create({ network: { allowPublicTraffic: false } })
  const key = { 'e2b-traffic-access-token': box.trafficAccessToken }
  check(box.trafficAccessToken, 'a traffic token')
  await serve(t, box, 'private', key)
  equal((await t.port(box, 8000)).status, 403, 'without the token')
  equal((await t.port(box, 8000, '/', key)).status, 200, 'with the token')
})

proves(['allow_internet_access', 'isolation.sandboxes'], 'traffic.no_internet', async (t) => {
  const box = await t.create({ allowInternetAccess: false })
  const dial = "timeout 5 bash -c 'exec 3<>/dev/tcp/192.0.2.1/80' 2>/dev/null"
  await raises(t.sdk.CommandExitError, box.commands.run(dial))
  equal((await box.getInfo()).allowInternetAccess, false, 'allowInternetAccess in info')
  const other = await t.create()
  await serve(t, other, 'mine')
  const probe = "timeout 5 bash -c 'exec 3<>/dev/tcp/127.0.0.1/8000' 2>/dev/null"
  await other.commands.run(probe)
  await raises(t.sdk.CommandExitError, (await t.create()).commands.run(probe))
})
