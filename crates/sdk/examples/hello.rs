//! Creates a sandbox, runs a command, writes a file, and kills the sandbox. Set `E2B_API_KEY`, and
//! for a self-hosted server `E2B_API_URL` and `E2B_SANDBOX_URL` (`sandbar up` prints all three).

use sandbar_sdk::Client;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::from_env()?;
    let sandbox = client.create("base").await?;
    let output = sandbox.commands().run("uname -a").await?;
    println!("{}", output.stdout_text());
    sandbox.files().write("notes.txt", "kept").await?;
    sandbox.kill().await?;
    Ok(())
}
