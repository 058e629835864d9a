//! Attacks on the MCP server over HTTP: by a page or a program without the token, and by a host
//! name that was rebound to loopback.

use serde_json::{Value, json};

use crate::mcp::HttpServer;
use crate::support::{Server, http};

#[test]
fn only_a_client_with_the_token_reaches_the_tools() {
    let server = Server::with(&["--ephemeral", "--no-studio"]);
    let mcp = HttpServer::start(&server);
    let body = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "test", "version": "0" } } });
    let body = body.to_string();
    let send = |method: &str, path: &str, headers: &[(&str, &str)]| {
        let accept = [("Accept", "application/json, text/event-stream"), ("Content-Type", "application/json")];
        http::request(&mcp.address, method, path, &[&accept, headers].concat(), body.as_bytes()).expect("an answer")
    };
    let bearer = format!("Bearer {}", mcp.token);
    let port = mcp.address.rsplit_once(':').expect("a port").1;
    let (shorter, longer, upper) =
        (&bearer[..bearer.len() - 1], format!("{bearer}0"), format!("Bearer {}", mcp.token.to_uppercase()));
    let (basic, key) = (format!("Basic {}", mcp.token), format!("Bearer {}", server.key));
    let (own, rebound) = (("Authorization", bearer.as_str()), format!("rebound.test:{port}"));
    let foreign = format!("http://evil.localhost:{port}");
    let attacks: [(u16, &[(&str, &str)]); 14] = [
        (401, &[]),
        (401, &[("Authorization", "")]),
        (401, &[("Authorization", "Bearer wrong")]),
        (401, &[("Authorization", shorter)]),
        (401, &[("Authorization", &longer)]),
        (401, &[("Authorization", &upper)]),
        (401, &[("Authorization", &basic)]),
        (401, &[("Authorization", &key)]),
        (401, &[("Cookie", &bearer)]),
        (403, &[own, ("Host", "evil.example")]),
        (403, &[own, ("Host", &rebound)]),
        (403, &[own, ("Origin", "https://evil.example")]),
        (403, &[own, ("Origin", &foreign)]),
        (403, &[own, ("Origin", "null")]),
    ];
    for (status, headers) in attacks {
        for method in ["POST", "GET", "DELETE"] {
            let reply = send(method, "/mcp", headers);
            assert_eq!(reply.status, status, "{method} {headers:?}: {}", reply.text());
        }
    }
    assert_eq!(send("POST", &format!("/mcp?token={0}&access_token={0}", mcp.token), &[]).status, 401, "in the query");
    // A browser sends a preflight request before the header. The response allows nothing.
    let asked = [("Origin", "https://evil.example"), ("Access-Control-Request-Method", "POST")];
    let preflight = send("OPTIONS", "/mcp", &asked);
    assert!(preflight.header("access-control-allow-origin").is_none(), "{:?}", preflight.headers);
    assert!(!(200..300).contains(&preflight.status), "{}", preflight.status);
    assert_eq!(server.call("GET", "/v2/sandboxes", None).json(), Value::Array(Vec::new()), "nothing was made");
    // The control.
    let agreed = send("POST", "/mcp", &[own]);
    assert_eq!(agreed.status, 200, "{}", agreed.text());
}
