//! What root may do inside a sandbox: the usual container set. Each holds in the sandbox's own user namespace only.
//!
//! The bounding set is the one that counts: process 1 is root of its user namespace, so its exec gives it exactly that set,
//! and no set-uid program can bring back what is not in it. Notably absent: SYS_ADMIN (mounts), NET_ADMIN (the sandbox's own network
//! is the engine's business), SYS_PTRACE (tracing processes of one's own user needs none), SYS_RESOURCE.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities,
};

const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::AUDIT_WRITE);

/// Limits this process, from its next exec on, and all it will start to [`KEPT`]. What it holds now stays until the exec.
pub(crate) fn limit_to_kept() -> rustix::io::Result<()> {
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if KEPT.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            // Past the last one this kernel knows.
            Err(Errno::INVAL) => break,
            result => result?,
        }
    }
    clear_ambient_capability_set()?;
    let now = capabilities(None)?;
    set_capabilities(None, CapabilitySets { inheritable: CapabilitySet::empty(), ..now })
}
