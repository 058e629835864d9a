// Volumes: file systems that outlive sandboxes and can be mounted in several at once.

import { check, equal, proves, raises } from '../harness.mjs'

const nameOf = (t) => t.mark.replaceAll('.', '-')

proves(['volumes'], 'volumes.life', async (t) => {
  const { Volume } = t.sdk
  const volume = await Volume.create(nameOf(t))
  equal(volume.name, nameOf(t), 'the name')
  check((await Volume.list()).some((row) => row.volumeId === volume.volumeId), 'it is listed')
  await raises(t.sdk.VolumeError ?? Error, Volume.create(nameOf(t)))
  equal(await Volume.destroy(volume.volumeId), true, 'the first destroy')
  equal(await Volume.destroy(volume.volumeId), false, 'the second destroy')
}, { quick: true })

proves(['volumes.content'], 'volumes.content', async (t) => {
  const { Volume } = t.sdk
  const volume = await Volume.create(nameOf(t))
  const entry = await volume.writeFile('/dir/file', 'one', { uid: 7, mode: 0o600 })
  equal([entry.path, entry.size, entry.uid, entry.mode], ['/dir/file', 3, 7, 0o600], 'the new entry')
  await volume.writeFile('/dir/file', 'other', { force: true })
  equal(await volume.readFile('/dir/file'), 'other', 'overwritten')
  await volume.makeDir('/dir/inner/deep', { force: true })
  const paths = (await volume.list('/', { depth: 3 })).map((row) => row.path)
  equal(paths, ['/dir', '/dir/file', '/dir/inner', '/dir/inner/deep'], 'a deep list')
  equal((await volume.updateMetadata('/dir/file', { mode: 0o644 })).mode, 0o644, 'a changed mode')
  await volume.remove('/dir')
  equal(await volume.exists('/dir'), false, 'after it was removed')
  await Volume.destroy(volume.volumeId)
})

proves(['volumes.mounts'], 'volumes.mounts', async (t) => {
  const { Volume } = t.sdk
  const volume = await Volume.create(nameOf(t))
  const one = await t.create({ volumeMounts: { '/mnt/data': volume } })
  const two = await t.create({ volumeMounts: { '/mnt/other': volume.name } })
  await one.commands.run('echo shared > /mnt/data/file')
  equal((await two.commands.run('cat /mnt/other/file')).stdout, 'shared\n', 'what the other sandbox wrote')
  for (const box of [one, two]) await box.kill()
  equal(await volume.readFile('/file'), 'shared\n', 'after its sandboxes')
  equal(await Volume.destroy(volume.volumeId), true, 'destroyed when no sandbox mounts it')
}, { deadline: 60 })
