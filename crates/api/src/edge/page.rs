//! Error pages for browsers, where programs get JSON: what is wrong, and what to do about it.

use http::{HeaderValue, Response, header};

use super::refusal::Refusal;
use crate::body::{self, Body};
use crate::routing::Target;

/// The page is self-contained: it fetches nothing and runs no script.
const POLICY: HeaderValue = HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'");

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2024;--soft:#60646c;--line:#e0e1e6;--paper:#fcfcfd;--code:#f0f0f3}\
@media(prefers-color-scheme:dark){:root{--ink:#edeef0;--soft:#b0b4ba;--line:#363a3f;--paper:#111113;--code:#212225}}\
*{box-sizing:border-box}\
body{margin:0;min-height:100vh;display:grid;place-items:center;padding:1.5rem;background:var(--paper);color:var(--ink);\
font:16px/1.6 system-ui,sans-serif}\
main{width:100%;max-width:36rem}\
h1{margin:0 0 .5rem;font-size:1.5rem;line-height:1.25}\
p{margin:.5rem 0}\
h2{margin:1.5rem 0 .25rem;font-size:1rem}\
code{display:inline-block;max-width:100%;padding:0 .35em;border-radius:4px;background:var(--code);font-size:.9em;overflow-wrap:anywhere}\
footer{margin-top:2rem;padding-top:.75rem;border-top:1px solid var(--line);color:var(--soft);font-size:.875rem}";

/// The text of a page, as trusted HTML. Of the request it contains only the id, which is letters
/// and digits, and the port.
struct Text {
    title: String,
    what: String,
    next: String,
    /// Reloads by itself, since the state passes within seconds.
    again: bool,
}

pub(super) fn answer(refusal: Refusal, target: &Target) -> Response<Body> {
    let Text { title, what, next, again } = text(refusal, target);
    let (status, Target { id, port }) = (refusal.status(), target);
    let refresh = if again { "<meta http-equiv=\"refresh\" content=\"2\">" } else { "" };
    let page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">{refresh}\
         <title>{title}</title><style>{STYLE}</style></head><body><main>\
         <h1>{title}</h1><p>{what}</p><h2>What to do</h2><p>{next}</p>\
         <footer>Sandbox <code>{id}</code> · port <code>{port}</code> · {status} · Sandbar</footer>\
         </main></body></html>",
        status = status.as_u16(),
    );
    let mut response = body::whole(status, "text/html; charset=utf-8", page);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, POLICY);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn text(refusal: Refusal, Target { id, port }: &Target) -> Text {
    let explain = |title: &str, what: String, next: String| Text { title: title.to_owned(), what, next, again: false };
    match refusal {
        Refusal::NotFound => explain(
            "The sandbox was not found",
            "No sandbox of this server has this ID. It was mistyped, or the sandbox was killed or reached the end of its \
             lease; sandboxes do not come back from that."
                .to_owned(),
            "<code>sandbar sandbox list</code> shows the sandboxes there are, and <code>sandbar sandbox create</code> makes \
             a new one."
                .to_owned(),
        ),
        Refusal::Paused => explain(
            "The sandbox is asleep",
            "It is paused with its files, and was not made to wake by itself when it is visited.".to_owned(),
            format!(
                "Wake it with <code>sandbar sandbox resume {id}</code> or <code>Sandbox.connect(\"{id}\")</code>, then \
                 reload this page. A sandbox that is made with auto-resume wakes by itself."
            ),
        ),
        Refusal::PortClosed => explain(
            &format!("Nothing listens on port {port}"),
            "The sandbox is running, but no program in it accepts connections on this port.".to_owned(),
            format!(
                "If the server in it is still starting, reload in a moment. Else see what it says about port {port}: \
                 <code>sandbar sandbox exec {id} -- ss -ltn</code> lists what listens."
            ),
        ),
        Refusal::NoAnswer => explain(
            "The service hung up",
            format!("A program in the sandbox listens on port {port}, but closed the connection without an answer."),
            "Look at that program's output: it may have crashed, or speak something other than HTTP. One that speaks HTTPS \
             itself must be named in <code>httpsPorts</code> when the sandbox is made."
                .to_owned(),
        ),
        Refusal::NotSecured => explain(
            "The service does not speak HTTPS",
            format!("The sandbox was made with port {port} in <code>httpsPorts</code>, but no TLS answers there."),
            "Let the program serve HTTPS, or make the sandbox without this port in that list.".to_owned(),
        ),
        Refusal::TrafficTokenMissing | Refusal::TrafficTokenWrong => explain(
            "The sandbox is private",
            "It was made with <code>allowPublicTraffic: false</code>, so its ports open only to requests with its traffic \
             token."
                .to_owned(),
            "Send the header <code>e2b-traffic-access-token</code> with the <code>trafficAccessToken</code> that its maker \
             was given. Browsers send no such header by themselves: use a program, or an extension that adds it."
                .to_owned(),
        ),
        Refusal::AccessTokenMissing | Refusal::Preflight => explain(
            "The sandbox is asleep",
            "This port is the sandbox's own service, and only a request with its access token wakes it.".to_owned(),
            format!("Wake it with <code>sandbar sandbox resume {id}</code>, or use an SDK, which sends the token."),
        ),
        Refusal::ResumedTooOften => Text {
            again: true,
            ..explain(
                "The sandbox was woken too often",
                "It was paused and woken by visitors many times within a minute.".to_owned(),
                "Wait: this page comes again by itself.".to_owned(),
            )
        },
        Refusal::Changing => Text {
            again: true,
            ..explain(
                "The sandbox is being paused or resumed",
                "This takes a moment.".to_owned(),
                "Wait: this page comes again by itself.".to_owned(),
            )
        },
        Refusal::Full => explain(
            "The machine is full",
            "The sandbox is asleep and cannot be woken: as many run as this server allows.".to_owned(),
            "End or pause another one, then reload this page.".to_owned(),
        ),
        Refusal::FilesMissing => explain(
            "The sandbox's files are missing",
            "It is paused, and the server's pool does not have its files any more. It was not started empty in their place."
                .to_owned(),
            format!(
                "Who runs the server can look for them: <code>sandbar recover</code> lists what can be brought back, and \
                 <code>sandbar recover {id}</code> does it."
            ),
        ),
        Refusal::CannotResume => explain(
            "The sandbox could not be woken",
            "It is asleep, and waking it failed.".to_owned(),
            format!("The server's log says why, and <code>sandbar sandbox logs {id}</code> what the sandbox says."),
        ),
    }
}
