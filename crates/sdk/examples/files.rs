//! Uploads a file, changes it in the sandbox and downloads it, in constant memory for any size.

use futures::TryStreamExt;
use sandbar_sdk::{Client, Command, Expiry};
use tokio::io::AsyncWriteExt;
use tokio_util::io::ReaderStream;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let source = std::env::args().nth(1).unwrap_or_else(|| "/etc/services".into());
    let target = std::env::temp_dir().join("sandbar-example.gz");
    let sandbox = Client::from_env()?.create("base").await?;
    let files = sandbox.files();

    let up = ReaderStream::new(tokio::fs::File::open(&source).await?);
    let written = files.write_stream("data", up).await?;
    println!("{source} → {}", written.path);

    let packed = sandbox.commands().run(Command::exec("gzip", ["--keep", "data"])).await?;
    assert!(packed.success(), "{}", packed.stderr_text());
    for entry in files.list(".").await?.iter().filter(|entry| entry.name.starts_with("data")) {
        println!("{} {:>10} {}", entry.permissions, entry.size, entry.name);
    }
    println!("signed link: {}", files.download_url("data.gz", Expiry::After(std::time::Duration::from_secs(60)))?);

    let mut down = files.read_stream("data.gz").await?;
    let mut file = tokio::fs::File::create(&target).await?;
    while let Some(chunk) = down.try_next().await? {
        file.write_all(&chunk).await?;
    }
    file.flush().await?;
    println!("data.gz → {}", target.display());
    sandbox.kill().await?;
    Ok(())
}
