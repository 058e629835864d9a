//! Creates a sandbox, runs a command in it, and kills it. Set `E2B_API_KEY`, and for a self-hosted
//! server `E2B_API_URL` and `E2B_SANDBOX_URL` (`sandbar up` prints all three).

use sandbar_sdk::Client;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::from_env()?;
    let sandbox = client.create("base").await?;
    println!("sandbox {}", sandbox.id());

    let output = sandbox.commands().run("echo \"hello from $(hostname)\"").await?;
    print!("{}", output.stdout_text());

    sandbox.kill().await?;
    Ok(())
}
