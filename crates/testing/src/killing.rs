//! Lets a child process work until a fault point, and kills it there with SIGKILL. The child is
//! the same test program; environment variables tell it what to do.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

const REACHED: &str = "reached the point";
const TIMEOUT: Duration = Duration::from_secs(90);

/// For the child: prints that it has reached the point, and waits there to be killed.
pub async fn wait_to_be_killed() {
    println!("\n{REACHED}");
    std::future::pending::<()>().await;
}

/// Starts the child in the test of this name, and kills it when it has reached the point.
pub fn kill_at<'a>(point: &str, test: &str, variables: impl IntoIterator<Item = (&'a str, &'a str)>) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test, "--nocapture"]).envs(variables);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().expect("it starts");
    let (sender, lines) = std::sync::mpsc::channel();
    let stdout = process.stdout.take().expect("stdout is piped");
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    loop {
        match lines.recv_timeout(TIMEOUT) {
            Ok(line) if line == REACHED => break,
            Ok(_) => {}
            Err(_) => {
                let _ = process.kill();
                let output = process.wait_with_output().expect("it has ended");
                panic!("{point} was never hit: {}", String::from_utf8_lossy(&output.stderr));
            }
        }
    }
    process.kill().expect("SIGKILL");
    process.wait().expect("it has ended");
}
