// A program as users of E2B's cloud write it: it knows a key and a domain, and no URL. Prints what it saw as one JSON line.

const { Sandbox } = await import(process.argv[2])

const box = await Sandbox.create({ timeoutMs: 60_000 })
try {
  const seen = { host: box.getHost(8000), id: box.sandboxId }
  const runs = Array.from({ length: 5 }, (_, number) => box.commands.run(`sleep 0.2; echo ${number}`))
  seen.commands = (await Promise.all(runs)).map((run) => run.stdout.trim())
  const content = 'ü'.repeat(500_000)
  await box.files.write('big.txt', content)
  seen.file = (await box.files.read('big.txt')) === content
  await box.files.write('www/index.html', 'from inside')
  const server = await box.commands.run('cd www && exec python3 -m http.server 8000', { background: true })
  await box.commands.run('for i in $(seq 100); do curl -so /dev/null localhost:8000 && exit; sleep 0.1; done; exit 1')
  seen.port = await (await fetch(`https://${box.getHost(8000)}/`)).text()
  // Signed links have the scheme and the host in them.
  const link = await box.downloadUrl('www/index.html')
  seen.link = [link.split('?')[0], await (await fetch(link)).text()]
  seen.killed = await server.kill()
  seen.running = await box.isRunning()
  console.log(JSON.stringify(seen))
} finally {
  await box.kill()
}
process.exit(0)
