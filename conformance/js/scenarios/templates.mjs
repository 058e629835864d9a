// What sandboxes start from: snapshots, forks, and templates built step by step.

import { mkdtemp, mkdir, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'

import { check, equal, proves, raises } from '../harness.mjs'

const nameOf = (t) => t.mark.replaceAll('.', '-').toLowerCase()
const text = async (box, command) => (await box.commands.run(command)).stdout

async function rows(paginator) {
  const found = []
  while (paginator.hasNext) {
    const page = await paginator.nextItems()
    found.push(page.map((row) => row.snapshotId))
    check(found.length < 100, 'the listing does not end')
  }
  return found
}

proves(['snapshots', 'snapshots.delete'], 'templates.snapshots', async (t) => {
  const box = await t.create()
  await box.files.write('kept.txt', 'before')
  const snapshot = await box.createSnapshot()
  await box.files.write('kept.txt', 'after')
  const child = await t.create({ template: snapshot.snapshotId })
  equal(await child.files.read('kept.txt'), 'before', 'the file as it was')
  await child.files.write('kept.txt', 'mine')
  equal(await box.files.read('kept.txt'), 'after', 'the source')
  await child.kill()
  equal(await t.Sandbox.deleteSnapshot(snapshot.snapshotId), true, 'the first delete')
  equal(await t.Sandbox.deleteSnapshot(snapshot.snapshotId), false, 'the second delete')
}, { deadline: 90, quick: true })

proves(['snapshots.named', 'snapshots.list'], 'templates.named_snapshots', async (t) => {
  const [box, name] = [await t.create(), nameOf(t)]
  await box.files.write('state', 'one')
  const first = await box.createSnapshot({ name })
  await box.files.write('state', 'two')
  const second = await box.createSnapshot({ name })
  equal(second.snapshotId, first.snapshotId, 'one snapshot')
  const unnamed = await box.createSnapshot()
  const child = await t.create({ template: name })
  equal(await child.files.read('state'), 'two', 'the newest state')
  await child.kill()
  const pages = await rows(t.Sandbox.listSnapshots({ sandboxId: box.sandboxId, limit: 1 }))
  equal(pages.flat().sort(), [first.snapshotId, unnamed.snapshotId].sort(), 'snapshots of this sandbox, page by page')
  for (const snapshot of [first, unnamed]) equal(await t.Sandbox.deleteSnapshot(snapshot.snapshotId), true, 'delete')
}, { deadline: 90 })

proves(['fork'], 'templates.fork', async (t) => {
  const box = await t.create()
  await box.files.write('state', 'shared')
  const children = await box.fork({ count: 2, timeoutMs: 120_000 })
  equal(children.length, 2, 'one entry a child')
  for (const child of children) {
    check(!(child instanceof Error), `a child did not start: ${child}`)
    equal(await child.files.read('state'), 'shared', 'the files of the source')
    await child.files.write('state', 'mine')
  }
  equal(await box.files.read('state'), 'shared', 'the source is as it was')
  for (const child of children) await child.kill()
}, { deadline: 90, quick: true })

proves(['templates.build', 'templates.copy', 'templates.exists'], 'templates.build', async (t) => {
  const { Template } = t.sdk
  const [name, root] = [nameOf(t), await mkdtemp(path.join(tmpdir(), 'conformance-'))]
  try {
    await mkdir(path.join(root, 'app'))
    await writeFile(path.join(root, 'app/main.py'), "print('built')\n")
    await symlink('main.py', path.join(root, 'app/link'))
    const template = (last) =>
      Template({ fileContextPath: root })
        .fromBaseImage()
        .setEnvs({ GREETING: 'hello' })
        .setWorkdir('/srv/app')
        .copy('app', '/srv/app')
        .runCmd(`: ${name}; echo $GREETING > greeting; date +%s%N > stamp`)
        .runCmd(last)
    await Template.build(template('true'), name)
    equal(await Template.exists(name), true, 'exists')
    equal(await Template.exists(`${name}-not`), false, 'exists of what does not')
    const box = await t.create({ template: name })
    equal(await text(box, 'pwd; cat greeting; python3 main.py; readlink link'), '/srv/app\nhello\nbuilt\nmain.py\n', 'the sandbox begins where the build ended')
    const stamp = await text(box, 'cat stamp')
    await Template.build(template('echo changed > last'), name)
    const again = await t.create({ template: name })
    equal(await text(again, 'cat stamp last'), `${stamp}changed\n`, 'only the changed step ran again')
  } finally {
    await rm(root, { recursive: true })
  }
}, { deadline: 180, quick: true })

proves(['templates.start', 'templates.from_template'], 'templates.start', async (t) => {
  const { Template } = t.sdk
  const name = nameOf(t)
  const serve = 'python3 -m http.server 8000 --bind 127.0.0.1 --directory /srv'
  const ready = 'curl -sf http://127.0.0.1:8000/page'
  const template = Template().fromBaseImage().runCmd('echo served > /srv/page', { user: 'root' }).setStartCmd(serve, ready)
  await Template.build(template, name)
  await Template.build(Template().fromTemplate(name).runCmd('echo more > more'), `${name}-2`)
  for (const used of [name, `${name}-2`]) {
    const box = await t.create({ template: used })
    const answer = await t.port(box, 8000, '/page')
    equal([answer.status, answer.text], [200, 'served\n'], `a server that was started for ${used}`)
  }
}, { deadline: 180 })

proves(['templates.failure'], 'templates.failure', async (t) => {
  const { Template } = t.sdk
  const template = Template().fromBaseImage().runCmd('true').runCmd('echo broken >&2; exit 7')
  const output = []
  const building = Template.build(template, nameOf(t), { onBuildLogs: (entry) => output.push(entry.message) })
  const error = await raises(t.sdk.BuildError, building)
  check(error.message.includes('7'), `the exit status is reported: ${error.message}`)
  check(output.some((line) => line.includes('broken')), 'the output of the command is reported')
  await raises(t.sdk.SandboxError, t.Sandbox.create(nameOf(t)))
}, { deadline: 120 })

proves(['templates.dockerfile'], 'templates.dockerfile', async (t) => {
  const { Template } = t.sdk
  const [name, root] = [nameOf(t), await mkdtemp(path.join(tmpdir(), 'conformance-'))]
  try {
    await writeFile(path.join(root, 'page.txt'), 'from the context\n')
    const dockerfile =
      'FROM e2bdev/base:latest\nENV KIND=docker\nWORKDIR /srv/page\nCOPY page.txt ./\nRUN echo $KIND >> page.txt\nUSER user\n'
    await Template.build(Template({ fileContextPath: root }).fromDockerfile(dockerfile), name)
    const box = await t.create({ template: name })
    equal(await text(box, 'pwd; whoami; cat page.txt; echo $KIND'), '/srv/page\nuser\nfrom the context\ndocker\ndocker\n', 'what the Dockerfile says')
    await Template.build(Template().fromImage('e2bdev/base').runCmd('echo image > state'), `${name}-image`)
    const image = await t.create({ template: `${name}-image` })
    equal(await text(image, 'cat state'), 'image\n', 'our base, without a download')
  } finally {
    await rm(root, { recursive: true })
  }
}, { deadline: 180, quick: true })

proves(['templates.tags', 'templates.background'], 'templates.tags', async (t) => {
  const { Template } = t.sdk
  const name = nameOf(t)
  const started = await Template.buildInBackground(Template().fromBaseImage().runCmd('echo 1 > state'), `${name}:v1`)
  let status
  while (!['ready', 'error'].includes(status)) status = (await Template.getBuildStatus(started)).status
  equal(status, 'ready', "the build's end")
  await Template.assignTags(`${name}:v1`, ['stable'])
  equal((await Template.getTags(started.templateId)).map((tag) => tag.tag).sort(), ['stable', 'v1'], 'tags')
  const box = await t.create({ template: `${name}:stable` })
  equal(await text(box, 'cat state'), '1\n', 'by its tag')
  await Template.removeTags(name, 'stable')
  await raises(t.sdk.SandboxError, t.Sandbox.create(`${name}:stable`))
}, { deadline: 120 })
