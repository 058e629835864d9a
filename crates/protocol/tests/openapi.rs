//! The OpenAPI document of the control plane that a Sandbar server serves: the calls of E2B's API
//! with the bodies of this crate, and Sandbar's additions. `docs/rest_reference.py` writes the
//! reference page from it and holds its calls against those that the conformance suite makes.
//!
//! It is compared with `tests/golden/openapi.json`; `GOLDEN=write` writes the file instead.

use std::path::Path;

use sandbar_protocol::rest::{
    self, ErrorBody, ForkResult, ListedSandbox, SandboxMetric, Snapshot, secret::SecretInfo, template::Template,
    template::TemplateTag, volume::Volume, volume::VolumeEntry,
};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

type Describe = fn(&mut SchemaGenerator) -> Schema;

/// What authorizes a call.
#[derive(Clone, Copy)]
enum Authorization {
    ApiKey,
    /// The token of a volume.
    Volume,
    /// The token in the link.
    Link,
    Nothing,
}

/// One call.
struct Call {
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    authorization: Authorization,
    query: Vec<(&'static str, &'static str)>,
    headers: Vec<(&'static str, &'static str)>,
    body: Option<Value>,
    answers: Vec<(u16, &'static str, Option<Value>)>,
}

/// All calls of the document, with the schemas of their bodies.
struct Document {
    sent: SchemaGenerator,
    answered: SchemaGenerator,
    calls: Vec<Call>,
}

impl Document {
    fn call(&mut self, method: &'static str, path: &'static str, summary: &'static str) -> &mut Self {
        let (query, headers, answers) = (Vec::new(), Vec::new(), Vec::new());
        let authorization = Authorization::ApiKey;
        self.calls.push(Call { method, path, summary, authorization, query, headers, body: None, answers });
        self
    }

    fn last(&mut self) -> &mut Call {
        self.calls.last_mut().expect("a call was added")
    }

    fn query(&mut self, name: &'static str, text: &'static str) -> &mut Self {
        self.last().query.push((name, text));
        self
    }

    fn header(&mut self, name: &'static str, text: &'static str) -> &mut Self {
        self.last().headers.push((name, text));
        self
    }

    fn authorized_by(&mut self, authorization: Authorization) -> &mut Self {
        self.last().authorization = authorization;
        self
    }

    fn takes<T: JsonSchema>(&mut self) -> &mut Self {
        let schema = self.sent.subschema_for::<T>().to_value();
        self.last().body = Some(json!({ "application/json": { "schema": schema } }));
        self
    }

    fn takes_bytes(&mut self) -> &mut Self {
        self.last().body = Some(json!({ "application/octet-stream": {} }));
        self
    }

    fn answers<T: JsonSchema>(&mut self, status: u16, text: &'static str) -> &mut Self {
        let describe: Describe = SchemaGenerator::subschema_for::<T>;
        let schema = describe(&mut self.answered).to_value();
        self.last().answers.push((status, text, Some(json!({ "application/json": { "schema": schema } }))));
        self
    }

    fn answers_nothing(&mut self, status: u16, text: &'static str) -> &mut Self {
        self.last().answers.push((status, text, None));
        self
    }

    fn answers_bytes(&mut self, status: u16, text: &'static str) -> &mut Self {
        self.last().answers.push((status, text, Some(json!({ "application/octet-stream": {} }))));
        self
    }

    fn refuses(&mut self, status: u16, text: &'static str) -> &mut Self {
        self.answers::<ErrorBody>(status, text)
    }

    fn pages(&mut self) -> &mut Self {
        self.query("limit", "Most rows of the page, 1 to 100; absent: 100.")
            .query("nextToken", "The header `x-next-token` of the page before.")
    }

    fn finish(mut self) -> Value {
        let mut paths = Map::new();
        for call in &self.calls {
            let methods = paths.entry(call.path).or_insert_with(|| json!({}));
            methods[call.method.to_ascii_lowercase()] = described(call);
        }
        let mut schemas = self.sent.take_definitions(true);
        schemas.extend(self.answered.take_definitions(true));
        json!({
            "openapi": "3.1.0",
            "info": {
                "title": "Sandbar control plane",
                "version": "VERSION",
                "description": "E2B's API as a Sandbar server serves it, with Sandbar's additions.",
            },
            "paths": paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {
                    "key": { "type": "apiKey", "in": "header", "name": "X-API-Key" },
                    "volume": { "type": "http", "scheme": "bearer", "description": "The token of the volume." },
                },
            },
            "security": [{ "key": [] }],
        })
    }
}

fn described(call: &Call) -> Value {
    let names = call.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let text = |name: &str| match (name, call.path.split('/').nth(1)) {
        ("id", Some("sandboxes" | "v2")) if call.path.contains("/sandboxes/") => "A sandbox.",
        ("id", Some("volumes" | "volumecontent")) => "A volume.",
        ("id", Some("secrets")) => "A secret, by id or name.",
        ("id", Some("sandbar")) if call.path.contains("/trash/") => "Files of the list, or what they belonged to.",
        ("id", _) => "A template, by id or name.",
        ("build", _) => "A build.",
        ("alias", _) => "A name.",
        _ => "The digest of the archive.",
    };
    let parameter = |name: &str, place: &str, text: &str| json!({ "name": name, "in": place, "required": place == "path", "description": text, "schema": { "type": "string" } });
    let mut parameters: Vec<Value> = names.map(|name| parameter(name, "path", text(name))).collect();
    parameters.extend(call.query.iter().map(|(name, text)| parameter(name, "query", text)));
    parameters.extend(call.headers.iter().map(|(name, text)| parameter(name, "header", text)));
    let mut responses = Map::new();
    for (status, text, content) in &call.answers {
        let mut response = json!({ "description": text });
        if let Some(content) = content {
            response["content"] = content.clone();
        }
        responses.insert(status.to_string(), response);
    }
    let mut described = json!({ "summary": call.summary, "responses": responses });
    if !parameters.is_empty() {
        described["parameters"] = parameters.into();
    }
    if let Some(content) = &call.body {
        described["requestBody"] = json!({ "required": true, "content": content });
    }
    match call.authorization {
        Authorization::ApiKey => {}
        Authorization::Volume => described["security"] = json!([{ "volume": [] }]),
        Authorization::Link | Authorization::Nothing => described["security"] = json!([]),
    }
    described
}

const GONE: &str = "Its files are missing from the server's pool; `error_code` says whose.";
const NO_SANDBOX: &str = "There is no such sandbox, or it does not run.";
const NO_TEMPLATE: &str = "There is no such template or tag.";
const FULL: &str = "As many sandboxes as the server allows exist already.";
const FIXED: &str = "It is the server's own.";
const MISSING: &str = "There is no such thing.";

fn sandboxes(calls: &mut Document) {
    for path in ["/sandboxes", "/v2/sandboxes"] {
        let summary = match path {
            "/sandboxes" => "Create a sandbox, as older SDKs do",
            _ => "Create a sandbox",
        };
        calls.call("POST", path, summary);
        if path == "/v2/sandboxes" {
            calls
                .header("Idempotency-Key", "A repeated call with the same key and body answers with the same sandbox.")
                .refuses(409, "A call with this key is under way.")
                .refuses(422, "This key came with another body.");
        }
        calls
            .takes::<rest::NewSandbox>()
            .answers::<rest::Sandbox>(201, "It runs.")
            .refuses(404, NO_TEMPLATE)
            .refuses(410, GONE)
            .refuses(429, FULL);
    }
    calls
        .call("GET", "/sandboxes", "List running sandboxes on one page, as older SDKs do")
        .query("metadata", "`NAME=VALUE` pairs joined by `&`, encoded twice: only sandboxes that have them.")
        .answers::<Vec<ListedSandbox>>(200, "The newest first.");
    calls
        .call("GET", "/v2/sandboxes", "List sandboxes, running and paused")
        .query("state", "`running`, `paused` or both, separated by a comma; absent: both.")
        .query("metadata", "`NAME=VALUE` pairs joined by `&`, encoded twice: only sandboxes that have them.")
        .query("template", "Only sandboxes of this template, by id or name.")
        .query("startedAfter", "Only sandboxes that started later, as RFC 3339.")
        .query("order", "`desc` (the newest first) or `asc`.")
        .pages()
        .answers::<Vec<ListedSandbox>>(
            200,
            "A page. The header `x-next-token` names the next one, `x-total-running` counts the running sandboxes.",
        );
    calls
        .call("GET", "/sandboxes/{id}", "Show a sandbox")
        .answers::<rest::SandboxDetail>(200, "Everything that is known of it.")
        .refuses(404, "There is no such sandbox.");
    calls
        .call("DELETE", "/sandboxes/{id}", "Kill a sandbox and delete its files")
        .answers_nothing(204, "It is gone.")
        .refuses(404, "There is no such sandbox.");
    for path in ["/sandboxes/{id}/connect", "/v2/sandboxes/{id}/connect"] {
        let summary = match path.starts_with("/v2") {
            false => "Connect to a sandbox, as older SDKs do; the timeout is required",
            true => "Connect to a sandbox: resume it if it is paused, and lengthen its timeout",
        };
        calls
            .call("POST", path, summary)
            .takes::<rest::Connect>()
            .answers::<rest::Sandbox>(200, "It was running.")
            .answers::<rest::Sandbox>(201, "It was paused and runs.")
            .refuses(404, "There is no such sandbox.")
            .refuses(410, GONE)
            .refuses(429, FULL);
    }
    calls
        .call("POST", "/sandboxes/{id}/pause", "Pause a sandbox")
        .takes::<rest::Pause>()
        .answers_nothing(204, "It is paused.")
        .refuses(404, "There is no such sandbox.")
        .refuses(409, "It is paused already, or the daemon inside does not answer.");
    calls
        .call("POST", "/sandboxes/{id}/resume", "Resume a paused sandbox")
        .takes::<rest::Resume>()
        .answers::<rest::Sandbox>(201, "It runs.")
        .refuses(404, "There is no such sandbox.")
        .refuses(409, "It runs already.")
        .refuses(410, GONE);
    calls
        .call("POST", "/sandboxes/{id}/timeout", "Set a timeout from now; it may also shorten")
        .takes::<rest::Timeout>()
        .answers_nothing(204, "It is set.")
        .refuses(404, NO_SANDBOX);
    calls
        .call("POST", "/sandboxes/{id}/refreshes", "Lengthen a timeout")
        .takes::<rest::Refresh>()
        .answers_nothing(204, "It ends no earlier than that.")
        .refuses(404, NO_SANDBOX);
    calls
        .call(
            "PUT",
            "/sandboxes/{id}/network",
            "Replace the rules of what a sandbox may reach; absent fields are cleared",
        )
        .takes::<rest::NetworkUpdate>()
        .answers_nothing(204, "They are in effect.")
        .refuses(404, NO_SANDBOX);
    calls
        .call("POST", "/sandboxes/{id}/fork", "Start copies of a sandbox, with its files")
        .takes::<rest::Fork>()
        .answers::<Vec<ForkResult>>(201, "One entry per copy.")
        .refuses(404, NO_SANDBOX);
    observation(calls);
}

fn observation(calls: &mut Document) {
    calls
        .call("POST", "/sandboxes/{id}/snapshots", "Take a snapshot of a sandbox's files, which others can start from")
        .takes::<rest::NewSnapshot>()
        .answers::<Snapshot>(201, "It is taken.")
        .refuses(409, "A template has this name.")
        .refuses(404, NO_SANDBOX);
    calls
        .call("GET", "/snapshots", "List snapshots")
        .query("sandboxID", "Only those of this sandbox.")
        .query("name", "Only those with this name.")
        .pages()
        .answers::<Vec<Snapshot>>(200, "A page; the header `x-next-token` names the next one.");
    calls
        .call("GET", "/sandboxes/{id}/logs", "Read a sandbox's log, as older SDKs do")
        .query("start", "From this time on, in Unix milliseconds.")
        .query("limit", "Most entries, 1 to 1000.")
        .answers::<rest::SandboxLogs>(200, "The oldest first.")
        .refuses(404, "There is no such sandbox.");
    calls
        .call("GET", "/v2/sandboxes/{id}/logs", "Read a sandbox's log")
        .query("cursor", "From this time on, in Unix milliseconds.")
        .query("limit", "Most entries, 1 to 1000.")
        .query("direction", "`forward`, or `backward` for the newest first.")
        .query("level", "The lowest level: `debug`, `info`, `warn` or `error`.")
        .query("search", "Only entries that contain this text.")
        .answers::<rest::SandboxLogPage>(200, "The entries.")
        .refuses(404, "There is no such sandbox.");
    calls
        .call("GET", "/sandboxes/{id}/metrics", "Read what a sandbox used")
        .query("start", "From this time on, in Unix seconds.")
        .query("end", "Up to this time, in Unix seconds.")
        .answers::<Vec<SandboxMetric>>(200, "The oldest first; sizes in bytes.")
        .refuses(404, "There is no such sandbox.");
    calls
        .call("GET", "/sandboxes/metrics", "Read what several sandboxes use now")
        .query("sandbox_ids", "At most 100 ids, separated by commas.")
        .answers::<rest::SandboxesMetrics>(200, "The newest sample of each that has one.");
    calls
        .call("GET", "/health", "Whether the server accepts changes")
        .authorized_by(Authorization::Nothing)
        .answers_nothing(200, "It does.")
        .answers_nothing(503, "It refuses changes.");
    calls
        .call("GET", "/ready", "Whether the server accepts changes, by part; with the API key also why not (Sandbar's)")
        .authorized_by(Authorization::Nothing)
        .answers::<rest::Readiness>(200, "It does.")
        .answers::<rest::Readiness>(503, "It refuses changes.");
}

fn templates(calls: &mut Document) {
    use rest::template as body;
    calls
        .call("POST", "/v3/templates", "Request a build of a template, new or not")
        .takes::<body::NewBuild>()
        .answers::<body::RequestedBuild>(202, "It waits for its files and its start.")
        .refuses(409, "The name is the server's own, or that of a snapshot.");
    calls
        .call("GET", "/templates/{id}/files/{hash}", "Whether an archive of files was uploaded, and where to upload it")
        .answers::<body::FileUpload>(201, "The link to upload to.")
        .refuses(404, NO_TEMPLATE);
    calls
        .call("PUT", "/templates/{id}/files/{hash}", "Upload an archive of files to such a link")
        .authorized_by(Authorization::Link)
        .query("token", "In the link.")
        .takes_bytes()
        .answers_nothing(200, "It is stored.")
        .refuses(403, "The token does not allow it.")
        .refuses(413, "It is too large.")
        .refuses(411, "The length is missing.");
    calls
        .call("POST", "/v2/templates/{id}/builds/{build}", "Start a requested build")
        .takes::<body::BuildStart>()
        .answers_nothing(202, "It runs.")
        .refuses(404, MISSING);
    let levels = "The lowest level: `debug`, `info`, `warn` or `error`.";
    calls
        .call("GET", "/templates/{id}/builds/{build}/status", "How far a build is")
        .query("logsOffset", "How many log lines to leave out.")
        .query("limit", "Most log lines, at most 100.")
        .query("level", levels)
        .answers::<body::BuildProgress>(200, "Its status, and log lines.")
        .refuses(404, MISSING);
    calls
        .call("GET", "/templates/{id}/builds/{build}/logs", "Read a build's log")
        .query("cursor", "From this time on, in Unix milliseconds.")
        .query("limit", "Most entries, 1 to 1000.")
        .query("direction", "`forward`, or `backward` for the newest first.")
        .query("level", levels)
        .answers::<body::BuildLogPage>(200, "The entries.")
        .refuses(404, MISSING);
    calls
        .call("GET", "/templates/aliases/{alias}", "Find a template by name")
        .answers::<body::TemplateAlias>(200, "Its id.")
        .refuses(404, NO_TEMPLATE);
    calls
        .call("POST", "/templates/tags", "Add tags to a build")
        .takes::<body::AssignTags>()
        .answers::<body::AssignedTags>(201, "The build has them.")
        .refuses(404, NO_TEMPLATE);
    calls
        .call("DELETE", "/templates/tags", "Remove tags")
        .takes::<body::RemoveTags>()
        .answers_nothing(204, "They are gone.")
        .refuses(404, NO_TEMPLATE);
    calls
        .call("GET", "/templates/{id}/tags", "List the tags of a template")
        .answers::<Vec<TemplateTag>>(200, "With the build of each.")
        .refuses(404, NO_TEMPLATE);
    calls
        .call("GET", "/templates", "List templates on one page, as older SDKs do")
        .answers::<Vec<Template>>(200, "The default one last.");
    calls
        .call("GET", "/v2/templates", "List templates")
        .pages()
        .answers::<Vec<Template>>(200, "A page; the header `x-next-token` names the next one.");
    calls
        .call("GET", "/templates/{id}", "Show a template and its builds")
        .answers::<body::TemplateWithBuilds>(200, "The newest build first.")
        .refuses(404, NO_TEMPLATE);
    for path in ["/templates/{id}", "/v2/templates/{id}"] {
        calls
            .call("PATCH", path, "Change a template")
            .takes::<body::TemplateUpdate>()
            .answers::<body::TemplateUpdated>(200, "It is changed.")
            .refuses(403, FIXED)
            .refuses(404, NO_TEMPLATE);
    }
    calls
        .call("DELETE", "/templates/{id}", "Delete a template or a snapshot")
        .answers_nothing(204, "It is gone.")
        .refuses(404, NO_TEMPLATE)
        .refuses(400, "Sandboxes are made from it.")
        .refuses(403, FIXED);
}

fn volumes(calls: &mut Document) {
    use rest::volume as body;
    calls.call("GET", "/volumes", "List volumes").answers::<Vec<Volume>>(200, "All of them.");
    calls
        .call("POST", "/volumes", "Create a volume")
        .takes::<body::NewVolume>()
        .answers::<body::VolumeAndToken>(201, "With the token of its content.");
    calls
        .call("GET", "/volumes/{id}", "Show a volume")
        .answers::<body::VolumeAndToken>(200, "With the token of its content.")
        .refuses(404, MISSING);
    calls
        .call("DELETE", "/volumes/{id}", "Delete a volume and its files")
        .answers_nothing(204, "It is gone.")
        .refuses(404, MISSING)
        .refuses(409, "A sandbox mounts it.");
    let path = ("path", "The absolute path in the volume; required.");
    let owner = [
        ("uid", "The owner of what is made."),
        ("gid", "The group of what is made."),
        ("mode", "The permission bits of what is made."),
    ];
    let content = |calls: &mut Document, method, kind, summary, query: &[(&'static str, &'static str)]| {
        calls.call(method, kind, summary).authorized_by(Authorization::Volume).query(path.0, path.1);
        for (name, text) in query {
            calls.query(name, text);
        }
    };
    let no_entry = "There is nothing at this path.";
    content(calls, "GET", "/volumecontent/{id}/path", "Show a file or directory of a volume", &[]);
    calls.answers::<VolumeEntry>(200, "What it is.").answers::<body::VolumeErrorBody>(404, no_entry);
    content(calls, "PATCH", "/volumecontent/{id}/path", "Change its owner or mode", &[]);
    calls.takes::<body::VolumeEntryUpdate>().answers::<VolumeEntry>(200, "As it is now.");
    calls.answers::<body::VolumeErrorBody>(404, no_entry);
    content(calls, "DELETE", "/volumecontent/{id}/path", "Delete it, with all below it", &[]);
    calls.answers_nothing(204, "It is gone.").answers::<body::VolumeErrorBody>(404, no_entry);
    let depth = [("depth", "How many levels of directories; absent: 1.")];
    content(calls, "GET", "/volumecontent/{id}/dir", "List a directory of a volume", &depth);
    calls.answers::<Vec<VolumeEntry>>(200, "What it has.").answers::<body::VolumeErrorBody>(404, no_entry);
    content(calls, "POST", "/volumecontent/{id}/dir", "Make a directory in a volume", &owner);
    calls.query("force", "`true`: make missing directories above.");
    calls.answers::<VolumeEntry>(201, "It is made.").answers::<body::VolumeErrorBody>(409, "Something is there.");
    content(calls, "GET", "/volumecontent/{id}/file", "Read a file of a volume", &[]);
    calls.answers_bytes(200, "What it has.").answers::<body::VolumeErrorBody>(404, no_entry);
    content(calls, "PUT", "/volumecontent/{id}/file", "Write a file of a volume", &owner);
    calls.query("force", "`true`: replace what is there.").answers::<body::VolumeErrorBody>(409, "Something is there.");
    calls.takes_bytes().answers::<VolumeEntry>(201, "It is stored.");
    calls.answers::<body::VolumeErrorBody>(507, "The volume or the disk is full; what was there stays.");
}

fn secrets(calls: &mut Document) {
    use rest::secret as body;
    calls
        .call("GET", "/secrets", "List secrets, without their values")
        .pages()
        .answers::<Vec<SecretInfo>>(200, "A page; the header `x-next-token` names the next one.");
    calls
        .call("POST", "/secrets", "Create a secret")
        .takes::<body::NewSecret>()
        .answers::<SecretInfo>(201, "It is stored.")
        .refuses(409, "There is one with this name.");
    calls.call("GET", "/secrets/{id}", "Show a secret, without its value").answers::<SecretInfo>(200, "What is known.");
    calls.refuses(404, MISSING);
    calls
        .call("POST", "/secrets/{id}", "Give a secret a new value")
        .takes::<body::SecretUpdate>()
        .answers::<SecretInfo>(200, "The next request has it.")
        .refuses(404, MISSING);
    calls.call("DELETE", "/secrets/{id}", "Delete a secret").answers_nothing(204, "It is gone.").refuses(404, MISSING);
    calls
        .call("GET", "/teams", "The one team, for E2B's command line")
        .answers::<Vec<Value>>(200, "With the key that the caller sent.");
}

fn additions(calls: &mut Document) {
    calls
        .call("GET", "/sandbar/capabilities", "What the server adds to E2B")
        .answers::<rest::Capabilities>(200, "By name, with bounds.");
    calls
        .call("GET", "/sandbar/trash", "List files that no record names")
        .answers::<Vec<rest::Recoverable>>(200, "What `sandbar recover` lists.");
    calls
        .call("POST", "/sandbar/trash/{id}", "Bring such files back")
        .answers::<rest::Recovered>(200, "A sandbox is paused with its files.")
        .refuses(404, MISSING);
    calls
        .call("POST", "/sandbar/templates/{id}/builds/{build}", "Start a requested build of several stages")
        .takes::<rest::template::StagedBuildStart>()
        .answers_nothing(202, "It runs.")
        .refuses(404, MISSING);
}

#[test]
fn the_document_is_the_recorded_one() {
    let settings = || {
        SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        })
    };
    let (sent, answered) = (settings().for_deserialize(), settings().for_serialize());
    let mut calls = Document { sent: sent.into_generator(), answered: answered.into_generator(), calls: Vec::new() };
    sandboxes(&mut calls);
    templates(&mut calls);
    volumes(&mut calls);
    secrets(&mut calls);
    additions(&mut calls);
    let found = format!("{:#}\n", calls.finish());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/openapi.json");
    if std::env::var_os("GOLDEN").is_some_and(|value| value == "write") {
        std::fs::write(&path, &found).expect("the file is written");
    }
    let expected = std::fs::read_to_string(&path).expect("a golden file");
    let differs = expected.lines().zip(found.lines()).find(|(expected, found)| expected != found);
    assert!(expected == found, "openapi.json differs, first at {differs:?}; GOLDEN=write writes the file");
}
