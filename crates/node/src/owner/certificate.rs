//! Installs the egress authority's certificate where rules set headers of TLS requests, so that
//! programs in the sandbox trust it. A sandbox without such rules is not changed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::Machine;
use tracing::warn;

use super::{Owner, chain, with_timeout};
use crate::guest_process::Script;
use crate::log::LogLevel;
use crate::sandbox::Record;
use crate::start_command::{self, GuestAccess};

/// The script takes milliseconds; a starved sandbox must not delay its own start.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(15);
const CERTIFICATE: &str = "/usr/local/share/ca-certificates/sandbar-egress.crt";
const BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Name of the variable in the script's environment.
const CONTENT: &str = "SANDBAR_EGRESS_CERTIFICATE";

/// Variables for programs that bring their own certificates, unless the user sets them: Node and
/// Deno add one file to theirs, the others read a single bundle.
const VARIABLES: [(&str, &str); 6] = [
    ("NODE_EXTRA_CA_CERTS", CERTIFICATE),
    ("DENO_CERT", CERTIFICATE),
    ("SSL_CERT_FILE", BUNDLE),
    ("REQUESTS_CA_BUNDLE", BUNDLE),
    ("CURL_CA_BUNDLE", BUNDLE),
    ("AWS_CA_BUNDLE", BUNDLE),
];

/// Idempotent. The fifth line of the certificate contains its key and identifies it in a bundle.
/// The other bundles are those of other distributions; OpenSSL finds certificates by file names
/// that are hashes.
const SCRIPT: &str = r#"set -eu
umask 022
mkdir -p /usr/local/share/ca-certificates /etc/ssl/certs /etc/profile.d
printf '%s\n' "$SANDBAR_EGRESS_CERTIFICATE" > "$CERTIFICATE"
chmod 644 "$CERTIFICATE"
mark=$(sed -n 5p "$CERTIFICATE")
for bundle in "$BUNDLE" /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem /etc/ssl/cert.pem; do
    [ -f "$bundle" ] || continue
    grep -qF "$mark" "$bundle" || { printf '\n'; cat "$CERTIFICATE"; } >> "$bundle"
    [ -f "$BUNDLE" ] || cp "$bundle" "$BUNDLE"
done
[ -f "$BUNDLE" ] || cp "$CERTIFICATE" "$BUNDLE"
if command -v openssl > /dev/null 2>&1; then
    ln -sf "$CERTIFICATE" "/etc/ssl/certs/$(openssl x509 -noout -hash -in "$CERTIFICATE").0"
fi
printf '%s' "$VARIABLES" > /etc/profile.d/sandbar-egress.sh
"#;

/// Variables that a sandbox with such rules starts with.
pub(super) fn variables(record: &Record) -> impl Iterator<Item = (String, String)> + use<> {
    let wanted = record.egress_rules().sets_headers();
    VARIABLES.into_iter().filter(move |_| wanted).map(|(name, value)| (name.to_owned(), value.to_owned()))
}

impl Owner {
    /// Installs the certificate in `machine` if rules set headers.
    pub(super) async fn install_certificate(&mut self, machine: &Arc<dyn Machine>) {
        if !self.record.egress_rules().sets_headers() {
            return;
        }
        let engine = Arc::clone(&self.node_state.engine);
        let certificate = match with_timeout("opening the egress's authority", engine.egress_certificate()).await {
            Ok(certificate) => certificate,
            Err(error) => return self.report_not_installed(&chain(&error)),
        };
        let profile: String =
            VARIABLES.map(|(name, value)| format!("export {name}=\"${{{name}:-{value}}}\"\n")).concat();
        let env = BTreeMap::from(
            [
                (CONTENT, certificate.trim_end()),
                ("CERTIFICATE", CERTIFICATE),
                ("BUNDLE", BUNDLE),
                ("VARIABLES", &profile),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
        let guest = GuestAccess { socket: machine.guest_socket(), token: self.record.access_token.as_ref() };
        let script = Script { user: "root", line: SCRIPT, workdir: Some("/"), env: &env };
        match tokio::time::timeout(SCRIPT_TIMEOUT, start_command::run(guest, script)).await {
            Ok(Ok(0)) => self.note(LogLevel::Info, "programs inside trust the egress, since rules set headers"),
            Ok(Ok(code)) => self.report_not_installed(&format!("exit code {code}")),
            Ok(Err(error)) => self.report_not_installed(&chain(&error)),
            Err(_) => self.report_not_installed("no end in time"),
        }
    }

    /// Logs the failure. Requests over TLS then fail in the sandbox, since programs do not know the
    /// certificate.
    fn report_not_installed(&mut self, why: &str) {
        warn!(sandbox = %self.record.id, error = why, "the egress's certificate was not installed");
        self.note(LogLevel::Error, "the egress's certificate could not be installed; rules for https will not work");
    }
}
