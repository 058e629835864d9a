//! Pauses a sandbox during its work and resumes it: files, memory and processes are preserved.

use std::time::Duration;

use sandbar_sdk::{Client, Command, Connect, Pause};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::from_env()?;
    let sandbox = client.create("base").await?;
    let id = sandbox.id().clone();
    let counter = "n=0; while true; do n=$((n + 1)); echo $n > count; sleep 0.1; done";
    let pid = sandbox.commands().start(Command::new(counter).no_timeout()).await?.pid();
    tokio::time::sleep(Duration::from_secs(1)).await;

    client.pause(&id, Pause::default()).await?;
    println!("{id} is paused; it costs nothing but its disk");

    // Possibly later and in another program: the id suffices.
    let sandbox = client.connect(&id, Connect::timeout(Duration::from_secs(300))).await?;
    let before = sandbox.files().read_text("count").await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let after = sandbox.files().read_text("count").await?;
    println!("process {pid} counted on from {} to {}", before.trim(), after.trim());
    sandbox.kill().await?;
    Ok(())
}
