//! Drives a terminal in a sandbox by script: types, resizes, disconnects and reconnects.

use std::time::Duration;

use sandbar_sdk::{Client, Running, Shell, Size};

/// Prints the terminal's output until it has been silent for a moment.
async fn show(terminal: &mut Running) -> Result<(), Box<dyn std::error::Error>> {
    while let Ok(next) = tokio::time::timeout(Duration::from_millis(500), terminal.next()).await {
        match next? {
            Some(chunk) => print!("{}", String::from_utf8_lossy(chunk.bytes())),
            None => break,
        }
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sandbox = Client::from_env()?.create("base").await?;
    let mut terminal = sandbox.pty().create(Size { cols: 80, rows: 24 }, Shell::default().no_timeout()).await?;
    terminal.send_stdin("echo $((6 * 7))\n").await?;
    show(&mut terminal).await?;

    terminal.resize(Size { cols: 120, rows: 40 }).await?;
    terminal.send_stdin("stty size\n").await?;
    show(&mut terminal).await?;

    // Closing the connection leaves the shell running.
    let pid = terminal.pid();
    drop(terminal);
    let mut terminal = sandbox.pty().connect(pid).await?;
    terminal.send_stdin("exit\n").await?;
    show(&mut terminal).await?;
    println!("\nended: {:?}", terminal.exit().map(|exit| &exit.status));
    sandbox.kill().await?;
    Ok(())
}
