//! Capabilities of a sandbox's processes: the usual set of containers, effective in the sandbox's
//! own user namespace only. A confined process keeps fewer, see [`keep_only`].
//!
//! The bounding set decides: process 1 is root of its user namespace, so its exec grants exactly
//! that set, and no set-uid program regains a capability that is not in it. Notably absent:
//! SYS_ADMIN (mounts), NET_ADMIN (the engine configures the sandbox's network), SYS_PTRACE (a
//! process traces those of its own user without it), SYS_RESOURCE.

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

/// The capabilities for writing a tree of files with any owner, mode, attribute and set-uid bit.
pub(crate) const FOR_FILES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SETFCAP);

/// Limits this process from its next exec on, and all of its descendants, to [`KEPT`]. Its present
/// capabilities stay until the exec.
pub(crate) fn limit_to_kept() -> rustix::io::Result<()> {
    limit_bounding_set(KEPT)?;
    let now = capabilities(None)?;
    set_capabilities(None, CapabilitySets { inheritable: CapabilitySet::empty(), ..now })
}

/// Drops all capabilities but `kept`, at once and for good.
pub(crate) fn keep_only(kept: CapabilitySet) -> rustix::io::Result<()> {
    limit_bounding_set(kept)?;
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() })
}

fn limit_bounding_set(kept: CapabilitySet) -> rustix::io::Result<()> {
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if kept.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            // The kernel knows no capability of this number, and none of a higher one.
            Err(Errno::INVAL) => break,
            result => result?,
        }
    }
    clear_ambient_capability_set()
}
