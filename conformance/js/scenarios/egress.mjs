// What a sandbox may reach, by lists of ranges and names. The hosts are those of ../../internet.py.

import { check, equal, proves } from '../harness.mjs'

const [PUBLIC, OTHER] = (process.env.SANDBAR_CONFORMANCE_INTERNET ?? '203.0.113.130 203.0.113.131').split(' ')
const EVERYTHING = '0.0.0.0/0'

const reaches = (box, url, options = '') =>
  box.commands.run(`curl -sSk -m 10 -o /dev/null ${options} ${url}`, { timeoutMs: 20_000 }).then(
    () => true,
    () => false,
  )

proves(['create.network_rules'], 'egress.ranges', async (t) => {
  let box = await t.create({ network: { denyOut: [PUBLIC] } })
  equal(await reaches(box, `http://${PUBLIC}/`), false, 'a denied address')
  equal(await reaches(box, `http://${OTHER}/`), true, 'another address')
  box = await t.create({ network: { allowOut: [PUBLIC], denyOut: [EVERYTHING] } })
  equal(await reaches(box, `http://${PUBLIC}/`), true, 'an allowed address')
  equal(await reaches(box, `http://${OTHER}/`), false, 'everything else')
}, { quick: true })

proves(['create.network_names'], 'egress.names', async (t) => {
  const box = await t.create({ network: { allowOut: ['allowed.test', '*.allowed.test'], denyOut: [EVERYTHING] } })
  for (const scheme of ['http', 'https']) {
    equal(await reaches(box, `${scheme}://allowed.test/`), true, `${scheme} to an allowed name`)
    equal(await reaches(box, `${scheme}://sub.allowed.test/`), true, `${scheme} below a star`)
    equal(await reaches(box, `${scheme}://other.test/`), false, `${scheme} to another name`)
    const pinned = `--resolve denied.test:${scheme === 'https' ? 443 : 80}:${PUBLIC}`
    equal(await reaches(box, `${scheme}://denied.test/`, pinned), false, `${scheme} to another name at the same address`)
  }
})

const shown = async (box, url) =>
  JSON.parse((await box.commands.run(`curl -sS -m 10 ${url}`, { timeoutMs: 20_000 })).stdout)

proves(['create.network_headers'], 'egress.headers', async (t) => {
  const { Secret } = t.sdk
  const name = t.mark.replaceAll('.', '-')
  const made = await Secret.create(name, 'value-1')
  try {
    const rules = { 'allowed.test': [{ transform: { headers: { Authorization: `Bearer ${Secret.fill(name)}` } } }] }
    const box = await t.create({ network: { rules } })
    const { headers } = await shown(box, 'https://allowed.test/')
    equal(headers.authorization, 'Bearer value-1', 'with a rule')
    const plain = await box.commands.run("curl -sS -m 10 -o /dev/null -w '%{http_code}' http://allowed.test/", { timeoutMs: 20_000 })
    equal(plain.stdout, '403', 'a secret in plain HTTP')
    equal((await shown(box, 'http://denied.test/')).headers.authorization, undefined, 'a name without a rule')
    await box.updateNetwork({})
    equal((await shown(box, 'http://allowed.test/')).headers.authorization, undefined, 'after all was cleared')
  } finally {
    await Secret.destroy(made.secretId)
  }
})

proves(['create.egress_proxy'], 'egress.proxy', async (t) => {
  const proxy = { address: `${PUBLIC}:1080`, username: 'me', password: 'hunter2' }
  const box = await t.create({ network: { egressProxy: proxy } })
  equal((await shown(box, 'http://allowed.test/')).client, '127.0.0.1', 'through the proxy')
  await box.updateNetwork({ egressProxy: { ...proxy, password: 'wrong' } })
  equal(await reaches(box, 'http://allowed.test/'), false, 'with a wrong password nothing goes out')
})

proves(['update_network'], 'egress.update', async (t) => {
  const box = await t.create()
  await box.updateNetwork({ allowOut: [PUBLIC], denyOut: [EVERYTHING] })
  equal(await reaches(box, `http://${PUBLIC}/`), true, 'what was allowed')
  equal(await reaches(box, `http://${OTHER}/`), false, 'all else')
  await box.updateNetwork({})
  equal(await reaches(box, `http://${OTHER}/`), true, 'after all was cleared')
})

proves(['network.kept'], 'egress.kept', async (t) => {
  const box = await t.create({ network: { allowOut: [OTHER], denyOut: [EVERYTHING] } })
  const [child] = await box.fork()
  check(!(child instanceof Error), `a child did not start: ${child}`)
  t.adopt(child)
  await box.pause()
  await t.Sandbox.connect(box.sandboxId)
  for (const one of [box, child]) {
    equal(await reaches(one, `http://${PUBLIC}/`), false, 'what was denied')
    equal(await reaches(one, `http://${OTHER}/`), true, 'what was allowed')
  }
})
