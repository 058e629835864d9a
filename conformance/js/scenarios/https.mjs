// Without any URL: a key, a domain, and TLS, as with E2B's cloud.

import { execFile } from 'node:child_process'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'

import { absent, equal, proves } from '../harness.mjs'

const PROGRAM = join(dirname(fileURLToPath(import.meta.url)), '..', 'programs', 'over_https.mjs')

if (!process.env.SANDBAR_CONFORMANCE_HTTPS) absent('https.domain')
else
  proves(['https.domain'], 'https.domain', async (t) => {
    const domain = `localhost:${new URL(t.url).port}`
    const kept = Object.entries(process.env).filter(([name]) => !name.startsWith('E2B_'))
    const env = { ...Object.fromEntries(kept), E2B_API_KEY: t.key, E2B_DOMAIN: domain }
    const { stdout } = await promisify(execFile)(process.execPath, [PROGRAM, t.module], { env, timeout: 80_000 })
    const seen = JSON.parse(stdout)
    equal(seen.host, `8000-${seen.id}.${domain}`, 'getHost')
    equal([seen.commands, seen.file], [['0', '1', '2', '3', '4'], true], 'commands and files')
    equal(seen.port, 'from inside', 'a service by its host')
    equal(seen.link, [`https://49983-${seen.id}.${domain}/files`, 'from inside'], 'a signed link')
    equal([seen.killed, seen.running], [true, true], 'the command is gone, the sandbox is not')
  }, { quick: true, deadline: 90 })
