// Secrets: values go in, and come out by no call.

import { check, equal, proves, raises } from '../harness.mjs'

proves(['secrets'], 'secrets.life', async (t) => {
  const { Secret } = t.sdk
  const name = `${t.mark}-Key`.replaceAll('.', '-')
  const made = await Secret.create(name, 'value-1', { metadata: { team: 'a' } })
  try {
    equal([made.name, made.version, made.metadata], [name.toLowerCase(), 1, { team: 'a' }], 'what was made')
    equal((await Secret.getInfo(made.secretId)).name, name.toLowerCase(), 'by its identifier')
    equal((await Secret.update(name, 'value-2')).version, 2, 'after a new value')
    equal(await Secret.exists(name), true, 'it is there')
    await raises(t.sdk.SecretError, Secret.create(name, 'again'))
    const found = (await t.pages(Secret.list({ limit: 1 }))).flat()
    check(found.length > 0, 'listed')
  } finally {
    equal(await Secret.destroy(made.secretId), true, 'it is deleted')
  }
  equal(await Secret.destroy(made.secretId), false, 'it was gone already')
  await raises(t.sdk.SecretNotFoundError, Secret.getInfo(name))
})
