//! The targets.

use crate::archives;

/// An edge that reads hostile bytes.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The name of its program and of its corpus.
    pub name: &'static str,
    /// Panics when a property is violated.
    pub check: fn(&[u8]),
    /// Tokens that mutation inserts.
    pub words: &'static [&'static str],
    /// The most bytes of an input.
    pub longest: usize,
    /// The most bytes that reading one input may allocate at a time.
    pub memory: usize,
}

const MIB: usize = 1 << 20;

/// All targets, by name.
pub const TARGETS: &[Target] = &[
    Target {
        name: "checkpoint_archive",
        check: archives::check_checkpoint,
        words: &["ustar\0", "path=", "linkpath=", "size=", "SCHILY.xattr.user.a=", "\n", "25 ", "s3cr3t-value"],
        longest: 8192,
        memory: 16 * MIB,
    },
    Target {
        name: "checkpoint_manifest",
        check: checkpoint::fuzzing::check_manifest,
        words: &["{\"format\":2,", "\"entries\":[", "{\"hex\":\"", "\"type\":\"file\"", "\"mode\":\"0755\"", "\n", "}"],
        longest: 4096,
        memory: 4 * MIB,
    },
    Target {
        name: "connect",
        check: check_connect,
        words: &["\0\0\0\0", "\u{2}\0\0\0\u{2}{}", "{\"error\":{\"code\":\"x\"}}"],
        longest: 4096,
        memory: 64 * MIB,
    },
    Target {
        name: "dns",
        check: egress::fuzzing::check_dns,
        words: &["\u{7}example", "\0\0\u{1}\0\u{1}", "\0\u{1c}\0\u{1}", "\0\u{5}\0\u{1}", "in-addr\u{4}arpa\0"],
        longest: 1024,
        memory: 4 * MIB,
    },
    Target {
        name: "dockerfile",
        check: check_dockerfile,
        words: &[
            "FROM a",
            " AS b",
            "\nRUN ",
            "\nCOPY --from=",
            "\nENV A=",
            "\nARG A=",
            "$A$A",
            "${A:-",
            "}",
            "<<EOF\n",
            "\nEOF",
            "\nEXPOSE 1-65535",
            "\nSHELL [\"a\"]",
            "\nUSER ",
            "\nWORKDIR ",
            "\\\n",
            "# escape=`\n",
            "\"",
            "'",
        ],
        longest: 4096,
        memory: 64 * MIB,
    },
    Target {
        name: "first_bytes",
        check: egress::fuzzing::check_first_bytes,
        words: &[
            "GET / HTTP/1.1\r\n",
            "Host: a.example\r\n",
            "CONNECT ",
            "http://",
            "\r\n",
            "\n",
            "\u{16}\u{3}\u{1}",
            "@",
            ":80",
        ],
        longest: 4096,
        memory: 4 * MIB,
    },
    Target {
        name: "image_archive",
        check: archives::check_image,
        words: &[
            "manifest.json",
            "index.json",
            "blobs/sha256/",
            "ustar\0",
            "[{\"Config\":\"",
            "\"Layers\":[",
            "rootfs",
        ],
        longest: 8192,
        memory: 16 * MIB,
    },
    Target {
        name: "image_layer",
        check: archives::check_layer,
        words: &["ustar\0", "../", ".wh.", ".wh..wh..opq", "path=", "linkpath=", "/etc/passwd", "SCHILY.xattr.user.a="],
        longest: 8192,
        // A frame of zstd may ask for a window of 100 MiB.
        memory: 300 * MIB,
    },
    Target {
        name: "multipart",
        check: guest::fuzzing::check_form,
        words: &[
            "multipart/form-data; boundary=XX\n",
            "\r\n--XX",
            "--XX--",
            "\r\n\r\n",
            "Content-Disposition: form-data;",
            "name=",
            "filename=\"",
            "filename*=utf-8''",
            "bytes=0-",
            "\\\"",
        ],
        longest: 2048,
        memory: 4 * MIB,
    },
    Target {
        name: "packet",
        check: egress::fuzzing::check_packet,
        words: &["\u{45}\0", "\u{60}\0", "\u{6}", "\u{11}", "\u{3a}"],
        longest: 2048,
        memory: MIB,
    },
    Target {
        name: "route",
        check: api::fuzzing::check_route,
        words: &[
            "GET /",
            "\nhost:",
            "8000-iabc",
            ".dash.example",
            "\ne2b-sandbox-id:",
            "\ne2b-sandbox-port:",
            "\nx-api-key:",
            "sbk-key",
            "\nx-access-token:",
            "\ncookie:sandbar_session=",
            "\nconnection:",
            "http://",
            "/%69nit",
            "/sandbar/",
        ],
        longest: 1024,
        memory: 4 * MIB,
    },
    Target {
        name: "signed_url",
        check: api::fuzzing::check_signed_url,
        words: &["\n", ":read:", ":write:", "/home/user/a", "1900000000", "%", "&", "+", "="],
        longest: 256,
        memory: MIB,
    },
];

/// The target of this name.
///
/// # Panics
/// When there is none.
pub fn find(name: &str) -> &'static Target {
    let names = || TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(", ");
    TARGETS.iter().find(|target| target.name == name).unwrap_or_else(|| panic!("no target {name}, only {}", names()))
}

/// A stream of a daemon, and a message of a client.
fn check_connect(bytes: &[u8]) {
    sdk::fuzzing::check_stream(bytes);
    guest::fuzzing::check_message(bytes);
}

/// A Dockerfile: stages come before what uses them, and an error has a place in the file.
fn check_dockerfile(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let plan = match dockerfile::plan(&text, &dockerfile::Options::default()) {
        Ok(plan) => plan,
        Err(error) => {
            assert!(error.line <= text.matches('\n').count() + 1, "{error}");
            let shown = error.to_string();
            assert!(shown.len() <= 4096 + 8 * text.len(), "{} bytes of error", shown.len());
            return;
        }
    };
    assert!(!plan.stages.is_empty());
    for (index, stage) in plan.stages.iter().enumerate() {
        assert!((1..=text.matches('\n').count() + 1).contains(&stage.line));
        if let dockerfile::Origin::Stage(base) = stage.origin {
            assert!(base < index, "stage {index} is based on {base}");
        }
        for step in &stage.steps {
            if let dockerfile::Action::Copy(copy) = &step.action {
                if let dockerfile::CopyFrom::Stage(from) = copy.from {
                    assert!(from < index, "stage {index} copies from {from}");
                }
                assert!(!copy.sources.is_empty());
                assert!(!copy.sources.iter().any(|source| source.split('/').any(|part| part == "..")), "{copy:?}");
            }
        }
    }
    assert!(!plan.ports.contains(&0) && plan.ports.len() < 65_536);
}
