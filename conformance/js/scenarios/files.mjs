// Files, watches and signed URLs.

import { createHash, randomBytes } from 'node:crypto'

import { absent, check, equal, formFile, proves, raises, request, sleep, until } from '../harness.mjs'

absent('files.write.iterable')

const buffer = (bytes) => bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength)
const same = (left, right) => Buffer.compare(Buffer.from(left), Buffer.from(right)) === 0

async function collect(stream) {
  const chunks = []
  for await (const chunk of stream) chunks.push(chunk)
  return chunks
}

proves(['files.write', 'files.read.text', 'files.exists'], 'files.write_and_read', async (t) => {
  const box = await t.create()
  const info = await box.files.write('hello.txt', 'Grüße\n')
  equal([info.name, info.path], ['hello.txt', '/home/user/hello.txt'], 'answer of write')
  equal(await box.files.read('hello.txt'), 'Grüße\n', 'text')
  equal(await box.files.exists('hello.txt'), true, 'exists')
  equal(await box.files.exists('nothing.txt'), false, 'exists of an absent path')
  const odd = 'odd name +&?#%20 ü.txt'
  await box.files.write(odd, 'odd')
  equal(await box.files.read(odd), 'odd', 'a name with characters special in URLs')
  equal((await box.commands.run('ls')).stdout, `hello.txt\n${odd}\n`, 'names on disk')
}, { quick: true })

proves(['files.read.bytes', 'files.read.stream', 'files.write.stream'], 'files.bytes_and_streams', async (t) => {
  const box = await t.create()
  const content = randomBytes(3 * 1024 * 1024 + 17)
  await box.files.write('data.bin', buffer(content))
  check(same(await box.files.read('data.bin', { format: 'bytes' }), content), 'bytes')
  const blob = await box.files.read('data.bin', { format: 'blob' })
  equal(blob.size, content.length, 'size of the blob')
  const chunks = await collect(await box.files.read('data.bin', { format: 'stream' }))
  check(chunks.length > 1 && same(Buffer.concat(chunks), content), 'streamed bytes are the written ones')
  await box.files.write('from-stream', new Blob([content]).stream())
  check(same(await box.files.read('from-stream', { format: 'bytes' }), content), 'bytes from a stream')
  await box.files.write('empty', '')
  equal(await box.files.read('empty'), '', 'an empty file')
  equal((await box.files.read('empty', { format: 'bytes' })).length, 0, 'an empty file as bytes')
  await raises(t.sdk.FileNotFoundError, box.files.read('absent', { format: 'stream' }))
}, { quick: true })

proves(['files.write_files', 'files.write.parents', 'files.write.overwrite'], 'files.many_files', async (t) => {
  const box = await t.create()
  const entries = Array.from({ length: 8 }, (_, n) => ({ path: `many/${n}/file ${n}.txt`, data: `content ${n}` }))
  const infos = await box.files.write(entries)
  equal(infos.map((info) => info.path), entries.map(({ path }) => `/home/user/${path}`), 'answer in order')
  for (const { path, data } of entries) equal(await box.files.read(path), data, path)
  equal(await box.files.write([]), [], 'an empty list')
  equal((await box.files.writeFiles([{ path: 'one', data: new Blob(['1']) }])).length, 1, 'writeFiles')
  await box.files.write('many/0/file 0.txt', 'new')
  equal(await box.files.read('many/0/file 0.txt'), 'new', 'overwritten')
  const owner = await box.commands.run("stat -c '%U:%G %a' many many/0 'many/0/file 0.txt'")
  equal(owner.stdout, 'user:user 755\nuser:user 755\nuser:user 644\n', 'owner and mode')
  await raises(t.sdk.InvalidArgumentError, box.files.write('many', 'a directory is there'))
})

proves(['files.gzip', 'files.octet_stream'], 'files.encodings', async (t) => {
  const box = await t.create()
  const text = 'the same line again\n'.repeat(20_000)
  await box.files.write('packed', text, { gzip: true })
  check((await box.files.read('packed')) === text, 'written with gzip, read plain')
  check((await box.files.read('packed', { gzip: true })) === text, 'read with gzip')
  equal((await box.commands.run('wc -c < packed')).stdout.trim(), String(text.length), 'stored unpacked')
  await box.files.write('octets', text, { useOctetStream: true })
  check((await box.files.read('octets')) === text, 'octet-stream')
})

proves(['files.list', 'files.get_info', 'files.make_dir'], 'files.entries', async (t) => {
  const box = await t.create()
  for (const path of ['d/b.txt', 'd/a/one', 'd/a/z/two', 'd/c/three']) await box.files.write(path, '12345')
  const names = async (options) =>
    (await box.files.list('d', options)).map((entry) => entry.path.replace('/home/user/d/', ''))
  equal(await names(), ['a', 'b.txt', 'c'], 'depth 1')
  equal(await names({ depth: 2 }), ['a', 'a/one', 'a/z', 'b.txt', 'c', 'c/three'], 'depth 2')
  await raises(t.sdk.FileNotFoundError, box.files.list('absent'))
  await raises(t.sdk.InvalidArgumentError, box.files.list('d/b.txt'))
  const entry = await box.files.getInfo('d/b.txt')
  equal(
    [entry.name, entry.path, entry.type, Number(entry.size), entry.mode, entry.permissions, entry.owner, entry.group],
    ['b.txt', '/home/user/d/b.txt', 'file', 5, 0o644, '-rw-r--r--', 'user', 'user'],
    'fields of a file',
  )
  check(Math.abs(Date.now() - entry.modifiedTime) < 60_000, `modified at ${entry.modifiedTime}`)
  const folder = await box.files.getInfo('d')
  equal([folder.type, folder.mode, folder.permissions], ['dir', 0o755, 'drwxr-xr-x'], 'fields of a directory')
  equal(await box.files.makeDir('x/y/z'), true, 'new directory with parents')
  equal(await box.files.makeDir('x/y/z'), false, 'directory that exists')
  await raises(t.sdk.InvalidArgumentError, box.files.makeDir('d/b.txt'))
}, { quick: true })

proves(['files.rename', 'files.remove', 'files.not_found', 'files.paths', 'files.user'], 'files.arrange', async (t) => {
  const box = await t.create()
  await box.files.write('old.txt', 'moved')
  equal((await box.files.rename('old.txt', 'new/place.txt')).path, '/home/user/new/place.txt', 'answer of rename')
  equal(await box.files.exists('old.txt'), false, 'the old name is gone')
  await raises(t.sdk.FileNotFoundError, box.files.rename('absent', 'anywhere'))
  await box.files.remove('new')
  equal(await box.files.exists('new'), false, 'removed with its content')
  await box.files.remove('absent')
  await raises(t.sdk.FileNotFoundError, box.files.read('absent.txt'))
  await raises(t.sdk.FileNotFoundError, box.files.getInfo('absent.txt'))
  await raises(t.sdk.InvalidArgumentError, box.files.read('/tmp'))
  await box.files.write('~/home.txt', 'home')
  equal(await box.files.read('/home/user/home.txt'), 'home', '~ is the home')
  await box.files.write('../../../../tmp/up.txt', 'up')
  equal(await box.files.read('/tmp/up.txt'), 'up', '.. stays inside the sandbox')
  await box.files.write('mine', "root's", { user: 'root' })
  equal((await box.commands.run('stat -c %U /root/mine', { user: 'root' })).stdout, 'root\n', "root's file")
})

proves(['files.metadata', 'files.symlinks'], 'files.metadata_and_links', async (t) => {
  const box = await t.create()
  const info = await box.files.write('tagged', 'x', { metadata: { Author: 'ada' } })
  equal(info.metadata, { author: 'ada' }, 'answer of write')
  equal((await box.files.getInfo('tagged')).metadata, { author: 'ada' }, 'getInfo')
  equal((await box.files.rename('tagged', 'renamed')).metadata, { author: 'ada' }, 'rename')
  await box.files.write('renamed', 'y')
  equal((await box.files.getInfo('renamed')).metadata ?? {}, {}, 'cleared by a plain overwrite')
  await box.commands.run('ln -s renamed link')
  const link = await box.files.getInfo('link')
  equal([link.name, link.symlinkTarget], ['link', '/home/user/renamed'], 'a link')
  equal(await box.files.read('link'), 'y', 'read follows a link')
})

proves(['files.large'], 'files.large', async (t) => {
  const box = await t.create()
  const block = randomBytes(1024 * 1024)
  const content = Buffer.concat(Array.from({ length: 64 }, (_, n) => { const b = Buffer.from(block); b.writeUInt32BE(n); return b }))
  const digest = (bytes) => createHash('sha256').update(bytes).digest('hex')
  await box.files.write('large.bin', buffer(content), { requestTimeoutMs: 60_000 })
  const inside = await box.commands.run("sha256sum large.bin | cut -d' ' -f1")
  equal(inside.stdout.trim(), digest(content), 'digest inside the sandbox')
  const back = Buffer.concat(await collect(await box.files.read('large.bin', { format: 'stream' })))
  equal(digest(back), digest(content), 'digest after the download')
}, { deadline: 90 })

/** A watch whose events are collected. */
async function watch(box, path, options) {
  const events = []
  const handle = await box.files.watchDir(path, (event) => { events.push(event) }, options)
  const kinds = () => events.map((event) => `${event.type} ${event.name}`)
  const until_ = (kind) => until(() => kinds().includes(kind), 10, () => `${kind} among ${kinds()}`, 0.05)
  return { events, kinds, until: until_, stop: () => handle.stop() }
}

proves(['watch'], 'watch.new_file', async (t) => {
  const box = await t.create()
  await box.files.makeDir('watched')
  const seen = await watch(box, 'watched')
  await box.files.write('watched/new.txt', 'content')
  await seen.until('write new.txt')
  await sleep(0.5)
  equal(seen.kinds(), ['create new.txt', 'chmod new.txt', 'write new.txt'], 'events of a new file')
  await seen.stop()
}, { quick: true })

proves(['watch.events', 'watch.recursive', 'watch.entries', 'watch.errors'], 'watch.every_kind', async (t) => {
  const box = await t.create()
  await box.files.write('tree/old/file', 'first')
  const seen = await watch(box, 'tree', { recursive: true, includeEntry: true })
  for (const [command, kind] of [
    ['echo more >> tree/old/file', 'write old/file'],
    ['chmod 600 tree/old/file', 'chmod old/file'],
    ['mv tree/old/file tree/old/other', 'rename old/file'],
    ['rm tree/old/other', 'remove old/other'],
    ['mkdir tree/young', 'create young'],
    ['sleep 0.3; echo x > tree/young/b', 'write young/b'],
  ]) {
    await box.commands.run(command)
    await seen.until(kind)
  }
  const write = seen.events.find((event) => event.type === 'write')
  equal(write.entry?.path, '/home/user/tree/old/file', 'entry of a write')
  equal(seen.events.find((event) => event.type === 'remove').entry, undefined, 'a removed path has no entry')
  await seen.stop()
  await raises(t.sdk.FileNotFoundError, box.files.watchDir('absent', () => {}))
  await box.files.write('plain', '')
  await raises(t.sdk.InvalidArgumentError, box.files.watchDir('plain', () => {}))
})

proves(['download_url', 'upload_url', 'signed_urls.refused'], 'signed_urls.all', async (t) => {
  const box = await t.create()
  await box.files.write('shared file.txt', 'for download')
  const good = await box.downloadUrl('shared file.txt')
  equal((await request('GET', good)).text, 'for download', 'download')
  const [headers, body] = formFile('ignored', 'uploaded')
  const up = await request('POST', await box.uploadUrl('in/coming.txt', { useSignatureExpiration: 120 }), headers, body)
  equal(up.status, 200, `upload: ${up.text.slice(0, 200)}`)
  equal(await box.files.read('in/coming.txt'), 'uploaded', 'uploaded content')
  equal((await request('POST', good, headers, body)).status, 401, 'a read signature does not write')
  await box.files.write('secret', "root's", { user: 'root' })
  equal((await request('GET', await box.downloadUrl('secret', { user: 'root' }))).text, "root's", 'as root')
  const short = await box.downloadUrl('shared file.txt', { useSignatureExpiration: 1 })
  await sleep(2.2)
  const late = await request('GET', short)
  equal([late.status, JSON.parse(late.text)], [401, { code: 401, message: 'signature is already expired' }], 'expired')
}, { quick: true })
