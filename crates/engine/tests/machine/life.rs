//! Boot, freeze, thaw, kill.

use crate::Test;
use crate::support::Sandbox;

pub(crate) const TESTS: &[Test] = &[("a_booted_sandbox_runs_commands", a_booted_sandbox_runs_commands)];

fn a_booted_sandbox_runs_commands() {
    let sandbox = Sandbox::new();
    assert_eq!(
        sandbox.succeed("echo hello; id -u; hostname; tr -d \\\\0 < /proc/1/cmdline"),
        "hello\n0\nsandbox\nsandbar-guest"
    );
}
