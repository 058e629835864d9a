//! The layers between untrusted code and the host, and whether each is on. Unlike [`Check`](super::Check)s, a layer that is
//! off keeps no sandbox from running: another layer still refuses.

use serde::Serialize;

use super::facts::Facts;

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
    vec![user_namespace, seccomp]
}
