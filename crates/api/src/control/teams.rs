//! The team of this server. E2B's command line lists its teams before anything else.

use http::{Response, StatusCode};
use serde_json::json;

use crate::body::{self, Body};
use crate::server::App;

/// The one team, with the key that the caller has sent already.
pub(super) fn list(app: &App) -> Response<Body> {
    let team = json!({
        "teamID": "00000000-0000-0000-0000-000000000000",
        "name": "local",
        "apiKey": app.config.api_key.as_str(),
        "isDefault": true,
    });
    body::json(StatusCode::OK, &json!([team]))
}
