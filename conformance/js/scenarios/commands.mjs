// Running commands and terminals.

import { absent, check, equal, proves, raises, sleep, until } from '../harness.mjs'

absent('commands.stream_input', 'pty.stream_input', 'commands.run.retain_output')

proves(['commands.run'], 'commands.run', async (t) => {
  const box = await t.create()
  const result = await box.commands.run('echo out; echo err >&2')
  equal([result.stdout, result.stderr, result.exitCode], ['out\n', 'err\n', 0], 'result')
  equal((await box.commands.run("printf '%s' 'žluťoučký 🐎'")).stdout, 'žluťoučký 🐎', 'text beyond ASCII')
  const many = await Promise.all(Array.from({ length: 20 }, (_, n) => box.commands.run(`sleep 0.2; echo ${n}`)))
  equal(many.map((one) => one.stdout), Array.from({ length: 20 }, (_, n) => `${n}\n`), '20 commands side by side')
}, { quick: true })

proves(['commands.run.exit_code'], 'commands.exit_code', async (t) => {
  const box = await t.create()
  const error = await raises(t.sdk.CommandExitError, box.commands.run('echo before; echo why >&2; exit 3'))
  equal([error.exitCode, error.stdout, error.stderr, error.error], [3, 'before\n', 'why\n', 'exit status 3'], 'the error')
  const killed = await raises(t.sdk.CommandExitError, box.commands.run('kill -9 $$'))
  equal([killed.exitCode, killed.error], [-1, 'signal: killed'], 'ended by a signal')
}, { quick: true })

proves(['commands.run.callbacks'], 'commands.callbacks', async (t) => {
  const box = await t.create()
  const seen = []
  let errors = ''
  await box.commands.run('echo one; echo bad >&2; sleep 2; echo two', {
    onStdout: (text) => seen.push([Date.now(), text]),
    onStderr: (text) => (errors += text),
  })
  equal([seen.map(([, text]) => text).join(''), errors], ['one\ntwo\n', 'bad\n'], 'text given to the callbacks')
  check(seen.at(-1)[0] - seen[0][0] > 500, 'chunks came together')
}, { quick: true })

proves(['commands.run.background', 'commands.list', 'commands.kill', 'commands.kill.unknown'], 'commands.background', async (t) => {
  const box = await t.create()
  const quick = await box.commands.run('sleep 0.3; echo done', { background: true })
  equal((await quick.wait()).stdout, 'done\n', 'result of wait')
  const long = await box.commands.run('sleep 1234', { background: true, envs: { MARK: 'x' }, cwd: '/tmp' })
  const listed = (await box.commands.list()).find((one) => one.pid === long.pid)
  check(listed, `pid ${long.pid} is listed`)
  equal([listed.cmd, listed.args, listed.envs.MARK, listed.cwd], ['/bin/bash', ['-l', '-c', 'sleep 1234'], 'x', '/tmp'], 'listed')
  equal(await box.commands.kill(long.pid), true, 'kill of a running command')
  equal((await raises(t.sdk.CommandExitError, long.wait())).exitCode, -1, 'exit code of a killed command')
  equal(await box.commands.kill(999999), false, 'kill of an unknown pid')
  const other = await box.commands.run('sleep 1234', { background: true })
  equal(await other.kill(), true, 'kill through the handle')
  await other.wait().catch(() => {})
}, { quick: true })

proves(['commands.connect', 'commands.disconnect', 'commands.connect.unknown'], 'commands.connect', async (t) => {
  const box = await t.create()
  const script = 'echo early; until test -e /tmp/go; do sleep 0.05; done; echo late'
  const first = await box.commands.run(script, { background: true })
  await first.disconnect()
  await sleep(0.5)
  const again = await box.commands.connect(first.pid)
  await box.files.write('/tmp/go', '')
  equal((await again.wait()).stdout, 'late\n', 'only new output after connect')
  await raises(t.sdk.NotFoundError, box.commands.connect(999999))
})

proves(['commands.send_stdin', 'commands.close_stdin'], 'commands.stdin', async (t) => {
  const box = await t.create()
  const cat = await box.commands.run('cat; echo end', { background: true, stdin: true })
  await box.commands.sendStdin(cat.pid, 'first ')
  await cat.sendStdin('second ✓')
  await until(() => cat.stdout.includes('second ✓'), 10, 'the echo of what was sent')
  await box.commands.closeStdin(cat.pid)
  const result = await cat.wait()
  equal([result.stdout, result.exitCode], ['first second ✓end\n', 0], 'cat ends with its input')
})

proves(['commands.run.cwd', 'commands.run.user', 'sudo'], 'commands.cwd_and_user', async (t) => {
  const box = await t.create()
  equal((await box.commands.run('pwd', { cwd: '/tmp' })).stdout, '/tmp\n', 'absolute cwd')
  await raises(t.sdk.InvalidArgumentError, box.commands.run('pwd', { cwd: '/no/such/place' }))
  equal((await box.commands.run('whoami; id -u')).stdout, 'user\n1000\n', 'default user')
  equal((await box.commands.run('whoami; id -u', { user: 'root' })).stdout, 'root\n0\n', 'root')
  equal((await box.commands.run('sudo whoami')).stdout, 'root\n', 'sudo without a password')
  await raises(t.sdk.AuthenticationError, box.commands.run('whoami', { user: 'nobody-of-that-name' }))
})

proves(['commands.run.timeout'], 'commands.timeout', async (t) => {
  const box = await t.create()
  let pid = ''
  const started = Date.now()
  const options = { timeoutMs: 2000, onStdout: (text) => { pid += text } }
  await raises(t.sdk.TimeoutError, box.commands.run('echo $$; exec sleep 10', options))
  const took = (Date.now() - started) / 1000
  check(took >= 1.8 && took <= 4, `the timeout of 2 s came after ${took} s`)
  const script = `kill -0 ${pid.trim()} 2>/dev/null && echo alive || echo dead`
  await until(async () => (await box.commands.run(script, { user: 'root' })).stdout === 'dead\n', 3, 'the process is gone')
})

proves(['commands.run.bytes', 'commands.run.big_output', 'commands.run.pipes'], 'commands.output', async (t) => {
  const box = await t.create()
  const broken = await box.commands.run(String.raw`printf 'a\xff\xfeb\n'`)
  check(broken.stdout.startsWith('a\ufffd') && broken.stdout.endsWith('b\n'), JSON.stringify(broken.stdout))
  const big = await box.commands.run(`python3 -c "import sys; sys.stdout.write('0123456789abcdef' * 524288)"`)
  check(big.stdout === '0123456789abcdef'.repeat(524288), `8 MiB arrive in order: ${big.stdout.length}`)
  equal((await box.commands.run('(sleep 1; echo child) & echo parent')).stdout, 'parent\nchild\n', 'a child outlives its parent')
})

proves(['kill.during_run'], 'commands.kill_during_run', async (t) => {
  const box = await t.create()
  let up
  const ready = new Promise((resolve) => (up = resolve))
  const run = box.commands.run('echo up; sleep 60', { onStdout: () => up() })
  run.catch(() => {})
  await ready
  const started = Date.now()
  await box.kill()
  const error = await raises(t.sdk.TimeoutError, run)
  check(error.message.includes('end of life'), error.message)
  check(Date.now() - started < 5000, `the error took ${Date.now() - started} ms`)
})

/** A terminal whose output is collected. */
async function terminal(box, options = {}) {
  const state = { text: '' }
  const decoder = new TextDecoder()
  const onData = (data) => { state.text += decoder.decode(data, { stream: true }) }
  state.handle = options.pid
    ? await box.pty.connect(options.pid, { onData })
    : await box.pty.create({ cols: 80, rows: 24, onData, ...options })
  state.type = (text) => box.pty.sendInput(state.handle.pid, new TextEncoder().encode(text))
  state.expect = (text) => until(() => state.text.includes(text), 15, () => `${text} in ${JSON.stringify(state.text.slice(-200))}`, 0.02)
  return state
}

proves(['pty.create', 'pty.send_stdin', 'pty.resize', 'pty.user'], 'pty.terminal', async (t) => {
  const box = await t.create()
  const tty = await terminal(box, { envs: { MARK: 'visible' }, cwd: '/tmp', user: 'root' })
  await tty.type('echo "[$MARK $TERM $PWD $(whoami)]"\n')
  await tty.expect('[visible xterm-256color /tmp root]')
  await tty.type('echo "<$(tput cols)x$(tput lines)>"\n')
  await tty.expect('<80x24>')
  await box.pty.resize(tty.handle.pid, { cols: 133, rows: 41 })
  await tty.type('echo "<$(tput cols)x$(tput lines)>"\n')
  await tty.expect('<133x41>')
  await tty.type('exit\n')
  equal((await tty.handle.wait()).exitCode, 0, 'exit code after `exit`')
}, { quick: true })

proves(['pty.exit_code', 'pty.control_keys'], 'pty.exit_code', async (t) => {
  const box = await t.create()
  const tty = await terminal(box)
  await tty.type(`bash -c 'echo "<in $((6*7))>"; sleep 100'\n`)
  await tty.expect('<in 42>')
  await tty.type('\x03')
  await tty.type('echo "<code $?>"\n')
  await tty.expect('<code 130>')
  await tty.type('exit 5\n')
  equal((await raises(t.sdk.CommandExitError, tty.handle.wait())).exitCode, 5, 'exit code')
})

proves(['pty.connect', 'pty.kill', 'pty.kill.unknown'], 'pty.connect', async (t) => {
  const box = await t.create()
  const first = await terminal(box)
  await first.type('STATE=remembered\n')
  await first.handle.disconnect()
  const second = await terminal(box, { pid: first.handle.pid })
  await second.type('echo "<$STATE>"\n')
  await second.expect('<remembered>')
  equal(await box.pty.kill(first.handle.pid), true, 'kill of a terminal')
  equal((await raises(t.sdk.CommandExitError, second.handle.wait())).exitCode, -1, 'exit code of a killed terminal')
  equal(await box.pty.kill(999999), false, 'kill of an unknown terminal')
})
