//! The browser's command line and environment.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// For `--host-resolver-rules`: no name resolves. The proxy resolves names instead.
const NO_NAMES: &str = "MAP * ~NOTFOUND , EXCLUDE 127.0.0.1";

const FLAGS: [&str; 27] = [
    "--headless",
    // A page needs few renderers, and its scripts no gigabytes.
    "--renderer-process-limit=8",
    "--js-flags=--max-old-space-size=512",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-startup-window",
    // Builds other than Google's enable all field trials.
    "--disable-field-trial-config",
    "--no-default-browser-check",
    "--disable-gpu",
    "--hide-scrollbars",
    "--mute-audio",
    // No traffic that no page asked for.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-sync",
    "--disable-breakpad",
    "--no-pings",
    // Nothing bypasses the proxy.
    "--disable-quic",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--enable-features=NetworkServiceSandbox",
    // The first two upgrade http to https. The others load pages for an address bar that headless
    // windows do not have: 0.6 s of CPU time per screenshot.
    "--disable-features=HttpsUpgrades,HttpsFirstBalancedModeAutoEnable,\
     WebUIOmniboxPopup,WebUIOmniboxAimPopup,WebUIOmniboxFullPopup",
    // Both viewports load concurrently, so one of the two windows is always in the background.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--password-store=basic",
];

/// A socket path is limited to 107 bytes, and Chromium appends
/// `/org.chromium.Chromium.XXXXXX/SingletonSocket`.
const MAX_SOCKET_DIRECTORY: usize = 62;

pub(super) fn command(program: &Path, profile: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().current_dir(profile);
    command.env("HOME", profile).env("PATH", "/usr/bin:/bin").env("LANG", "C.UTF-8").env("TZ", "UTC");
    // Temporary files in the profile are removed with it. They stay in /tmp where the path would be
    // too long for a socket.
    if profile.as_os_str().len() <= MAX_SOCKET_DIRECTORY {
        command.env("TMPDIR", profile);
    }
    command.args(FLAGS).arg(format!("--host-resolver-rules={NO_NAMES}"));
    let mut directory = OsString::from("--user-data-dir=");
    directory.push(profile);
    command.arg(directory);
    // Every context has its own proxy. Requests outside a context, such as the browser's own, meet
    // a closed port here.
    command.arg("--proxy-server=http://127.0.0.1:1").arg("--proxy-bypass-list=<-loopback>");
    command
}
