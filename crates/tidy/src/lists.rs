//! Lists that the checks read: what is allowed, with the reason, and which type names have two
//! meanings still.
//!
//! The lists only shrink: a test fails when an entry is no longer needed.

/// How many crates the longest chain of dependencies has at most, from a crate down, itself
/// included: what a reader follows from a request to the kernel stays short. A crate that would
/// make it longer belongs beside the others.
pub const MAX_DEPTHS: &[(&str, usize)] = &[
    // The server: six with the program.
    ("api", 5),
    ("sandbar", 6),
];

/// Commits after this one have subjects by the rule.
pub const BASE_COMMIT: &str = "3e3334612fa1b56fb0b8e339ed97b032f9846270";

/// A banned word that one file or directory may use.
pub struct Exception {
    /// A path, or the beginning of one.
    pub path: &'static str,
    pub word: &'static str,
    pub reason: &'static str,
}

/// Words that stay because users, the wire or the records have them.
pub const WORD_EXCEPTIONS: &[Exception] = &[
    Exception { path: "web/src/pages/build.tsx", word: "somebody", reason: "text of the dashboard" },
    Exception { path: "web/e2e/scenes.mjs", word: "somebody", reason: "text of the dashboard" },
    Exception { path: "web/src/panels/screenshots.tsx", word: "looks", reason: "text of the dashboard" },
];

/// Links of pages of `docs/` that leave the book, with the reason.
pub const BOOK_LINK_EXCEPTIONS: &[(&str, &str, &str)] = &[];

/// `unsafe` outside of a `sys` module, with the reason.
pub const UNSAFE_EXCEPTIONS: &[(&str, &str)] = &[
    ("crates/engine/tests/machine/guest.rs", "a guest of one file, which inherits its socket as descriptor 3"),
    ("crates/launcher/tests/confined.rs", "a confined program of one file, which attempts forbidden calls"),
];

/// Type names that several crates may define, with the reason.
pub const ALLOWED_TYPES: &[(&[&str], &str)] = &[
    (&["Model"], "SeaORM derives these names for every table and crate"),
    (
        &[
            "ArchiveFormat",
            "BuildFailure",
            "BuildStatus",
            "EntryKind",
            "FileKind",
            "Fork",
            "Metrics",
            "Network",
            "NewBuild",
            "NewSandbox",
            "NewSnapshot",
            "OnTimeout",
            "Recoverable",
            "Recovered",
            "Resume",
            "Pause",
            "Sandbox",
            "SetAsideRow",
            "Snapshot",
            "Template",
            "Timeout",
            "Volume",
            "VolumeMount",
            "Lease",
            "ListedSandbox",
            "Connect",
        ],
        "`protocol` has the body that travels, the other crate the same concept inside",
    ),
    (
        &[
            "SandboxError",
            "TemplateError",
            "VolumeError",
            "SecretError",
            "BuildError",
            "CreateError",
            "Secrets",
            "Volumes",
            "Build",
            "Command",
            "SnapshotQuery",
        ],
        "a server's concept in `node` and the same concept at the client in `sdk`, which share no crate but `protocol`",
    ),
    (
        &["Create", "Shell", "Run", "Start", "Trust", "Watch", "Workspace"],
        "subcommands of the program, named like the commands they parse",
    ),
    (&["Secret"], "what users store in `node`; a value that is not shown in `secret` and `browser`"),
    (&[], "Dockerfile's words in `dockerfile`, and the same step of a build behind it"),
    (&["Records", "RecordsError", "MemoryRecords", "OpenError"], "every crate with tables has this port to them"),
    (
        &["Settings", "Limits", "Usage", "User", "Users", "Credentials", "EgressConfig", "S3Config", "Prices"],
        "configuration or accounting of its own crate; one concept, scoped by its crate",
    ),
];

/// Type names that several crates define with several meanings, until they are renamed.
pub const PENDING_TYPES: &[&str] = &[
    "Block",
    "Body",
    "Call",
    "Change",
    "Clock",
    "Connection",
    "Egress",
    "Entry",
    "Event",
    "Exit",
    "Failure",
    "Fault",
    "Files",
    "Health",
    "Image",
    "Inner",
    "Job",
    "Kind",
    "Layer",
    "Machine",
    "Origin",
    "Outcome",
    "Output",
    "Owner",
    "Page",
    "Parts",
    "Plan",
    "Process",
    "Processes",
    "Progress",
    "Refusal",
    "Refused",
    "Reply",
    "Report",
    "Request",
    "Resources",
    "Running",
    "Script",
    "Server",
    "Shared",
    "Side",
    "Size",
    "Source",
    "State",
    "Step",
    "Stream",
    "Target",
    "Token",
    "Tree",
];
