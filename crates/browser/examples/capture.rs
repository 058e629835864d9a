//! Takes screenshots of a page: `capture ORIGIN [PATH] [TIMES]` writes desktop.webp and mobile.webp
//! to the working directory.

use std::time::Instant;

use sandbar_browser::{Browser, BrowserConfig, CaptureRequest, Origin, Upstream};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let filter = std::env::var("RUST_LOG").unwrap_or_else(|_| "sandbar_browser=debug".to_owned());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let mut arguments = std::env::args().skip(1);
    let origin: Origin = arguments.next().ok_or("usage: capture ORIGIN [PATH] [TIMES]")?.parse()?;
    let upstream = Upstream::direct(&origin);
    let mut request = CaptureRequest::new(origin, upstream);
    request.url_path = arguments.next().unwrap_or_else(|| "/".to_owned());
    let times: usize = arguments.next().map_or(Ok(1), |times| times.parse())?;
    let browser = Browser::start(BrowserConfig::new("/tmp/sandbar-browser-example"))?;
    for _ in 0..times {
        let started = Instant::now();
        let capture = browser.capture(request.clone()).await?;
        println!("{:?} {capture:#?}", started.elapsed());
        for screenshot in &capture.screenshots {
            std::fs::write(format!("{}.webp", screenshot.name), &screenshot.webp)?;
        }
    }
    browser.close().await;
    Ok(())
}
