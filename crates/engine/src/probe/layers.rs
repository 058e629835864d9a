//! The layers between untrusted code and the host, and whether each is on. Unlike with
//! [`Check`](super::Check)s, sandboxes run without a layer that is off: another layer still
//! refuses.

use serde::Serialize;

use super::facts::Facts;
use crate::privilege::Privilege;

/// One layer of defence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Layer {
    /// Short and stable, for programs.
    pub name: &'static str,
    pub on: bool,
    /// What the layer refuses, or why it is off.
    pub found: String,
}

/// Every layer, in the order in which hostile code meets them.
pub(super) fn all(facts: &Facts) -> Vec<Layer> {
    let user_namespace = Layer {
        name: "user namespace",
        on: true,
        found: match facts.rootless {
            None => "every sandbox has 65536 host ids of its own".to_owned(),
            Some(_) => "a sandbox's root is an ordinary user of the host".to_owned(),
        },
    };
    let seccomp =
        Layer { name: "seccomp", on: true, found: "system calls outside the allow list are refused".to_owned() };
    vec![
        user_namespace,
        seccomp,
        socket_protocols(),
        landlock(facts),
        host_files(facts),
        pseudo_files(),
        guest_memory(),
        core_dumps(&facts.core_pattern),
        limits_of_all(facts),
        flow_budget(),
    ]
}

fn socket_protocols() -> Layer {
    let found =
        "TCP, UDP, ICMP, MPTCP, raw and three kinds of netlink; no other protocol's module is loaded".to_owned();
    Layer { name: "socket protocols", on: true, found }
}

fn landlock(facts: &Facts) -> Layer {
    let (on, found) = match facts.trial.as_ref().map(|trial| &trial.landlock) {
        Ok(Ok(Some(version))) => {
            let scoped = if *version >= 6 { ", no abstract socket and no signal of others" } else { "" };
            (true, format!("version {version}: a sandbox opens no file outside its root{scoped}"))
        }
        Ok(Ok(None)) => {
            (false, "this kernel has no Landlock, or its first version (Linux 5.19 has a usable one)".to_owned())
        }
        Ok(Err(refusal)) => (false, format!("cannot {}: error {}", refusal.step, refusal.errno)),
        Err(error) => (false, format!("could not be tried: {error}")),
    };
    Layer { name: "landlock", on, found }
}

/// Tried by the probe: the overlay of a sandbox's `/usr`, the screen included.
fn host_files(facts: &Facts) -> Layer {
    let on = facts.trial.as_ref().is_ok_and(|trial| trial.overlay.is_ok());
    let found = match (on, facts.rootless) {
        (false, _) => "the overlay over the host's /usr cannot be mounted; see the check `overlay`".to_owned(),
        (true, Some(Privilege::Single)) => {
            "of the host's /usr, sandboxes read what the server's user may read; private files that were there when the \
             template was made are hidden"
                .to_owned()
        }
        (true, _) => "of the host's /usr, sandboxes read what every user of the host may read".to_owned(),
    };
    Layer { name: "host files", on, found }
}

fn pseudo_files() -> Layer {
    let found = "/proc is masked and /sys an allow list: no other sandbox, no disk, no path of the host".to_owned();
    Layer { name: "masked /proc and /sys", on: true, found }
}

fn guest_memory() -> Layer {
    let found = "the guest is not dumpable: nothing inside traces it or takes its descriptors".to_owned();
    Layer { name: "guest memory", on: true, found }
}

/// The limit of 1 byte keeps the kernel from writing a file and from running a program; it connects
/// to a socket in any case.
fn core_dumps(pattern: &str) -> Layer {
    let (on, found) = match pattern.chars().next() {
        Some('@') => (
            false,
            format!(
                "core_pattern is the socket {pattern}, to which the kernel sends every crash whatever the limit is; \
                 sysctl -w kernel.core_pattern=core"
            ),
        ),
        Some('|') => (true, format!("off; the host's crash handler ({pattern}) is not run for sandboxes")),
        _ => (true, "off".to_owned()),
    };
    Layer { name: "core dumps", on, found }
}

fn limits_of_all(facts: &Facts) -> Layer {
    let (on, found) = match &facts.together {
        Ok(limits) => (true, limits.clone()),
        Err(why) => (false, why.clone()),
    };
    Layer { name: "limits of all sandboxes", on, found }
}

fn flow_budget() -> Layer {
    let found = "connections of all sandboxes share the server's descriptors and the host's ports, each by its share";
    Layer { name: "budget of flows", on: true, found: found.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_handler_is_named() {
        let apport = core_dumps("|/usr/share/apport/apport -p%p");
        assert!(apport.on && apport.found.contains("/usr/share/apport/apport"), "{apport:?}");
        assert!(core_dumps("core").on && !core_dumps("@/run/systemd/coredump").on);
    }
}
