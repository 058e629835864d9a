//! How long a snapshot and a restore take, next to plain `tar` in the same sandbox.
//!
//! ```text
//! cargo run --release -p sandbar-workspace --example snapshot_figures    # E2B_API_KEY and E2B_API_URL name the server
//! ```

use std::error::Error;
use std::time::{Duration, Instant};

use sandbar_workspace::snapshot::{Objects, ProjectId, SnapshotOptions, Snapshots, Which};
use sdk::{Client, Command, Create, Sandbox};

const ROUNDS: u32 = 3;
/// 10,000 files and 500 MB, of text that a program could have written and of bytes that cannot be made shorter.
const MAKE: &str = r"
import os
words = [bytes(b % 26 + 97 for b in os.urandom(2 + n % 9)) for n in range(2000)]
for folder in range(100):
    os.makedirs('w/d%d' % folder)
    for name in range(100):
        picks = os.urandom(16000)
        text = b' '.join(words[(picks[at] << 8 | picks[at + 1]) % 2000] for at in range(0, 16000, 2))[:40000]
        with open('w/d%d/f%d' % (folder, name), 'wb') as file:
            file.write(text + os.urandom(50000 - len(text)))
";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::from_env()?;
    let create = || client.create(Create::template("base").timeout(Duration::from_secs(3600)));
    let (old, new) = (create().await?, create().await?);
    run(&old, Command::exec("python3", ["-c", MAKE])).await?;
    let directory = tempfile::tempdir()?;
    let snapshots = Snapshots::new(Objects::disk(directory.path())?);
    let project: ProjectId = "figures".parse()?;

    // In turns, so that both meet the same machine; the quickest of each counts.
    let (mut plain, mut save, mut unpack, mut restore) = (Duration::MAX, Duration::MAX, Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        plain = plain.min(run(&old, shell("tar cz -C /home/user . | cat >/var/plain.tgz")).await?);
        let begun = Instant::now();
        let saved = snapshots.save(&old, &project, &SnapshotOptions::default()).await?;
        save = save.min(begun.elapsed());

        run(&old, shell("rm -rf /var/out && mkdir /var/out")).await?;
        unpack = unpack.min(run(&old, shell("tar xz -C /var/out </var/plain.tgz")).await?);
        run(&new, shell("rm -rf /home/user/w")).await?;
        let begun = Instant::now();
        let restored = snapshots.restore(&new, &project, Which::Newest).await?;
        restore = restore.min(begun.elapsed());
        assert_eq!(restored.files, saved.files);
        println!("{} files, {} bytes of archive", saved.files, saved.bytes);
    }
    println!("tar cz   {plain:>8.2?}   save    {save:>8.2?}   {:.2}x", save.as_secs_f64() / plain.as_secs_f64());
    println!(
        "tar xz   {unpack:>8.2?}   restore {restore:>8.2?}   {:.2}x",
        restore.as_secs_f64() / unpack.as_secs_f64()
    );
    old.kill().await?;
    new.kill().await?;
    Ok(())
}

fn shell(line: &str) -> Command {
    Command::exec("/bin/bash", ["-c", line]).user("root")
}

/// How long a command took, which must succeed.
async fn run(sandbox: &Sandbox, command: Command) -> Result<Duration, Box<dyn Error>> {
    let begun = Instant::now();
    let output = sandbox.commands().run(command.timeout(Duration::from_secs(600))).await?;
    if output.success() { Ok(begun.elapsed()) } else { Err(output.stderr_text().into()) }
}
