//! The rules: from facts to checks. Each failed check has the exact command or setting that fixes
//! it.

use std::io;

use super::Check;
use super::facts::{Facts, Problem};
use super::programs;
use crate::pool::PoolKind;
use crate::privilege::Privilege;
use launcher::trial::Refusal;
use launcher::users::{Ids, SANDBOX_IDS};

pub(super) const DISK: &str = "disk";
const CGROUPS: &str = "cgroups";
const IDS: &str = "subordinate-ids";
/// Without these, sandboxes are safe but isolated less.
pub(super) const WEAKENING: [&str; 3] = [DISK, CGROUPS, IDS];
pub(super) const RUN_AS_ROOT: &str = "run as root: sudo sandbar up";
const NEWER_KERNEL: &str =
    "install a newer kernel (Debian 12: apt-get install -y -t bookworm-backports linux-image-amd64) and restart";
/// Id-mapped mounts as overlay layers.
const OLDEST_KERNEL: (u32, u32) = (5, 19);
/// Overlays in user namespaces, and mounts whose attributes can be changed.
const OLDEST_KERNEL_ROOTLESS: (u32, u32) = (5, 12);
/// Overlays with a list of layers of any length.
const LAYER_LIST_KERNEL: (u32, u32) = (6, 5);
const GIB: u64 = 1 << 30;

/// Capabilities that creating a sandbox needs; numbers as in `capabilities(7)`.
const CAPABILITIES: [(u32, &str); 12] = [
    (0, "CAP_CHOWN"),
    (1, "CAP_DAC_OVERRIDE"),
    (3, "CAP_FOWNER"),
    (5, "CAP_KILL"),
    (6, "CAP_SETGID"),
    (7, "CAP_SETUID"),
    (8, "CAP_SETPCAP"),
    (12, "CAP_NET_ADMIN"),
    (18, "CAP_SYS_CHROOT"),
    (19, "CAP_SYS_PTRACE"),
    (21, "CAP_SYS_ADMIN"),
    (27, "CAP_MKNOD"),
];

/// All checks, in the order in which their fixes are best applied.
pub(super) fn all(facts: &Facts) -> Vec<Check> {
    let rootless = facts.rootless.is_some();
    let mut checks = vec![
        required("kernel", kernel(facts)),
        required("privileges", privileges(facts)),
        required("user-namespaces", user_namespaces(facts)),
    ];
    checks.extend(rootless.then(|| optional(IDS, subordinate_ids(facts))));
    checks.extend([
        required("overlay", overlay(facts)),
        check(CGROUPS, !rootless, facts.cgroups.clone()),
        required("freezer", facts.freezer.clone()),
        required("seccomp", seccomp(facts)),
        required("network", network(facts)),
        disk(facts),
        optional("descriptors", descriptors(facts)),
        optional("programs", programs(facts)),
        optional("tls-roots", tls_roots(facts)),
    ]);
    checks
}

type Verdict = Result<String, Problem>;

fn required(name: &'static str, verdict: Verdict) -> Check {
    check(name, true, verdict)
}

fn optional(name: &'static str, verdict: Verdict) -> Check {
    check(name, false, verdict)
}

fn check(name: &'static str, required: bool, verdict: Verdict) -> Check {
    match verdict {
        Ok(found) => Check { name, ok: true, required, found, fix: None },
        Err(Problem { found, fix }) => Check { name, ok: false, required, found, fix: Some(fix) },
    }
}

fn problem<T>(found: impl Into<String>, fix: impl Into<String>) -> Result<T, Problem> {
    Err(Problem { found: found.into(), fix: fix.into() })
}

fn kernel(facts: &Facts) -> Verdict {
    let found = format!("Linux {}", facts.release);
    let oldest = if facts.rootless.is_some() { OLDEST_KERNEL_ROOTLESS } else { OLDEST_KERNEL };
    match version(&facts.release) {
        Some(version) if version >= oldest => Ok(found),
        _ => {
            let (major, minor) = oldest;
            problem(format!("{found}; {major}.{minor} or newer is needed"), NEWER_KERNEL)
        }
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn privileges(facts: &Facts) -> Verdict {
    if facts.rootless.is_some() {
        return Ok("an ordinary user; how sandboxes differ from those of root is listed below".into());
    }
    let missing = CAPABILITIES.iter().filter(|(bit, _)| facts.capabilities & (1 << bit) == 0);
    let missing: Vec<_> = missing.map(|(_, name)| *name).collect();
    if missing.is_empty() {
        return Ok("root with all capabilities that are needed".into());
    }
    problem(
        format!("root without {}", missing.join(", ")),
        "run outside the container, or start it with all capabilities (docker run --privileged)",
    )
}

fn subordinate_ids(facts: &Facts) -> Verdict {
    match facts.trial.as_ref().ok().and_then(|trial| trial.ids.as_ref()) {
        Some(Ids::Single { why, fix }) => {
            problem(format!("{why}: sandboxes get the id of this user, and no other"), fix.clone())
        }
        Some(Ids::Subordinate { user, .. }) => Ok(format!("{SANDBOX_IDS} from {user} on, for all sandboxes together")),
        None if facts.rootless == Some(Privilege::Single) => {
            problem("this process has no id but its own to give to sandboxes", RUN_AS_ROOT)
        }
        None => Ok("those of this user namespace".into()),
    }
}

fn user_namespaces(facts: &Facts) -> Verdict {
    match facts.max_user_namespaces {
        None => return problem("the kernel has none", "use a kernel that is built with CONFIG_USER_NS"),
        Some(0) => {
            return problem(
                "switched off (user.max_user_namespaces is 0)",
                "sysctl -w user.max_user_namespaces=15000 (at every start: echo user.max_user_namespaces=15000 \
                 >/etc/sysctl.d/90-sandbar.conf)",
            );
        }
        Some(_) => {}
    }
    match &facts.trial {
        Err(why) => problem(format!("could not be tried: {why}"), not_tried(facts)),
        Ok(trial) => match &trial.namespaces {
            Ok(()) => Ok("can be made, with ids of their own".into()),
            Err(refusal) => problem(describe(refusal), namespace_fix(facts, refusal)),
        },
    }
}

fn namespace_fix(facts: &Facts, refusal: &Refusal) -> String {
    match refusal.errno {
        _ if !facts.is_root => {
            "let ordinary users make them: sysctl -w kernel.unprivileged_userns_clone=1 (older Debian), sysctl -w \
             kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu); or run as root: sudo sandbar up"
                .into()
        }
        libc::EPERM | libc::EACCES => {
            "run outside a chroot or container, or start the container with docker run --privileged".into()
        }
        libc::ENOSPC | libc::EUSERS => {
            "raise the limits: for n in user mnt pid net ipc uts cgroup; do sysctl -w user.max_${n}_namespaces=15000; done"
                .into()
        }
        _ => "use a kernel that is built with CONFIG_USER_NS, CONFIG_PID_NS, CONFIG_NET_NS, CONFIG_IPC_NS and CONFIG_UTS_NS"
            .into(),
    }
}

fn overlay(facts: &Facts) -> Verdict {
    let trial = match &facts.trial {
        Err(why) => return problem(format!("could not be tried: {why}"), not_tried(facts)),
        Ok(trial) => trial,
    };
    let Err(refusal) = &trial.overlay else {
        let found = if facts.rootless.is_some() { "in user namespaces" } else { "id-mapped layers, up to 500 of them" };
        return Ok(found.into());
    };
    let old = version(&facts.release).is_some_and(|version| version < LAYER_LIST_KERNEL);
    let fix = match refusal.errno {
        _ if trial.namespaces.is_err() => AFTER_NAMESPACES.to_owned(),
        libc::EINVAL if facts.rootless.is_some() => {
            "nothing may be mounted below /usr (findmnt -R /usr shows it), or run as root: sudo sandbar up".to_owned()
        }
        libc::ENODEV => "modprobe overlay (at every start: echo overlay >/etc/modules-load.d/overlay.conf)".to_owned(),
        _ if old => NEWER_KERNEL.to_owned(),
        libc::EINVAL if refusal.step.starts_with("map the ids") => {
            "keep /usr on ext4, xfs or btrfs: run on the host itself, not in a container whose files are an overlay"
                .to_owned()
        }
        _ => "see what the kernel says: dmesg | grep -i overlay".to_owned(),
    };
    problem(describe(refusal), fix)
}

fn seccomp(facts: &Facts) -> Verdict {
    let trial = match &facts.trial {
        Err(why) => return problem(format!("could not be tried: {why}"), not_tried(facts)),
        Ok(trial) => trial,
    };
    match &trial.filter {
        Ok(()) => Ok("the system-call filter can be installed".into()),
        Err(refusal) if trial.namespaces.is_err() => problem(describe(refusal), AFTER_NAMESPACES),
        Err(refusal) => problem(describe(refusal), "use a kernel that is built with CONFIG_SECCOMP_FILTER"),
    }
}

fn network(facts: &Facts) -> Verdict {
    if !facts.has_tun_node {
        return problem(
            "there is no /dev/net/tun",
            "modprobe tun; mkdir -p /dev/net; [ -c /dev/net/tun ] || mknod -m 600 /dev/net/tun c 10 200",
        );
    }
    let trial = match &facts.trial {
        Err(why) => return problem(format!("could not be tried: {why}"), not_tried(facts)),
        Ok(trial) => trial,
    };
    let Err(refusal) = &trial.network else { return Ok("TUN devices can be made".into()) };
    let fix = match refusal.errno {
        _ if trial.namespaces.is_err() => AFTER_NAMESPACES,
        libc::EACCES if facts.rootless.is_some() => "sudo chmod 666 /dev/net/tun (which is how udev makes it)",
        libc::EPERM | libc::EACCES => {
            "let this container use the device: docker run --device /dev/net/tun, or --privileged"
        }
        _ => "modprobe tun (at every start: echo tun >/etc/modules-load.d/tun.conf)",
    };
    problem(describe(refusal), fix)
}

fn disk(facts: &Facts) -> Check {
    let data = facts.data.display();
    let forecast = match &facts.disk {
        Ok(forecast) => forecast,
        Err(why) => {
            return required(DISK, problem(format!("{data}: {why}"), "choose a directory on a local disk: --data DIR"));
        }
    };
    let kind = match forecast.kind {
        PoolKind::NativeBtrfs => "hard limits (subvolumes of the host's btrfs)",
        PoolKind::LoopBtrfs => "hard limits (btrfs in a sparse image)",
        PoolKind::Directory => "soft limits (directories)",
    };
    let found = format!("{kind}, {} GiB free", forecast.free / GIB);
    if forecast.free < forecast.reserve {
        let reserve = forecast.reserve.div_ceil(GIB);
        let fix = format!("have more than {reserve} GiB free where {data} is, or choose another directory: --data DIR");
        return required(DISK, problem(format!("{found}; {reserve} GiB are kept free"), fix));
    }
    optional(
        DISK,
        match &forecast.shortcoming {
            None => Ok(found),
            Some(shortcoming) => problem(format!("{found}: {}", shortcoming.what), shortcoming.fix.clone()),
        },
    )
}

/// Sixteen for each of a thousand sandboxes, the default limit of their number.
const ENOUGH_DESCRIPTORS: u64 = 16_000;

fn descriptors(facts: &Facts) -> Verdict {
    let found = format!("the server can have {}", facts.descriptors);
    if facts.descriptors >= ENOUGH_DESCRIPTORS {
        return Ok(found);
    }
    problem(
        format!("{found}, enough for {} sandboxes", facts.descriptors / 16),
        "raise the hard limit: LimitNOFILE=1048576 for a service, `ulimit -Hn 1048576` in root's shell; or lower \
         sandboxes.max_sandboxes",
    )
}

fn programs(facts: &Facts) -> Verdict {
    if facts.missing_programs.is_empty() {
        return Ok(programs::names().collect::<Vec<_>>().join(" "));
    }
    let list = |each: fn(&programs::Missing) -> &'static str| {
        facts.missing_programs.iter().map(each).collect::<Vec<_>>().join(" ")
    };
    problem(
        format!("sandboxes would lack {}", list(|missing| missing.program)),
        install(facts, &list(|missing| missing.package)),
    )
}

fn tls_roots(facts: &Facts) -> Verdict {
    match &facts.tls_roots {
        Some(path) => Ok(path.display().to_string()),
        None => problem("no bundle of certificate authorities", install(facts, "ca-certificates")),
    }
}

fn install(facts: &Facts, packages: &str) -> String {
    if facts.has_apt {
        format!("apt-get install -y {packages}")
    } else {
        format!("install with this system's package manager (Debian's names): {packages}")
    }
}

const AFTER_NAMESPACES: &str = "make the fix for user-namespaces first, then run sandbar doctor again";

fn not_tried(facts: &Facts) -> &'static str {
    if facts.is_root {
        "mount /proc (mount -t proc proc /proc) and let this program be executed, then run sandbar doctor again"
    } else {
        RUN_AS_ROOT
    }
}

fn describe(Refusal { step, errno }: &Refusal) -> String {
    format!("cannot {step}: {}", io::Error::from_raw_os_error(*errno))
}

#[cfg(test)]
mod tests {
    use super::super::programs::Missing;
    use super::super::{Isolation, report};
    use super::*;
    use crate::pool::{Forecast, Shortcoming};
    use launcher::trial::Trial;

    /// A machine that lacks nothing.
    fn good() -> Facts {
        Facts {
            release: "6.12.0-amd64".into(),
            is_root: true,
            rootless: None,
            capabilities: u64::MAX,
            max_user_namespaces: Some(1000),
            trial: Ok(Trial {
                ids: None,
                namespaces: Ok(()),
                overlay: Ok(()),
                network: Ok(()),
                filter: Ok(()),
                landlock: Ok(Some(7)),
            }),
            cgroups: Ok("v2".into()),
            freezer: Ok("cgroup2".into()),
            together: Ok("limited".into()),
            descriptors: 1 << 20,
            has_tun_node: true,
            data: "/data".into(),
            disk: Ok(Forecast { kind: PoolKind::LoopBtrfs, shortcoming: None, free: 50 * GIB, reserve: GIB }),
            missing_programs: vec![],
            tls_roots: Some("/etc/ssl/certs/ca-certificates.crt".into()),
            has_apt: true,
            core_pattern: "core".into(),
        }
    }

    fn refusal<T>(step: &str, errno: i32) -> Result<T, Refusal> {
        Err(Refusal { step: step.into(), errno })
    }

    fn trial(facts: &mut Facts) -> &mut Trial {
        facts.trial.as_mut().expect("the good machine could be tried")
    }

    /// The one check that fails, its fix, and the resulting isolation, after `change` to a machine
    /// that lacks nothing.
    #[track_caller]
    fn check(change: impl FnOnce(&mut Facts), name: &str, fix: &str, isolation: Isolation) {
        let mut facts = good();
        change(&mut facts);
        let report = report(&facts);
        let failed: Vec<_> = report.checks.iter().filter(|check| !check.ok).collect();
        let [failed] = failed[..] else { panic!("{failed:#?}") };
        assert_eq!(failed.name, name);
        let found = failed.fix.as_deref().expect("a failed check has a fix");
        assert!(found.contains(fix), "{found:?} lacks {fix:?}");
        assert_eq!((report.isolation, report.ok), (isolation, isolation != Isolation::None));
    }

    #[test]
    fn a_good_machine_needs_no_fix() {
        let report = report(&good());
        assert!(report.checks.iter().all(|check| check.ok && check.fix.is_none()), "{report:#?}");
        assert_eq!((report.ok, report.isolation), (true, Isolation::Full));
        let names: Vec<_> = report.checks.iter().map(|check| check.name).collect();
        assert_eq!(
            names.join(" "),
            "kernel privileges user-namespaces overlay cgroups freezer seccomp network disk descriptors programs tls-roots"
        );
    }

    #[test]
    fn kernels_are_compared_by_number() {
        for (release, good) in
            [("5.19.0", true), ("5.18.19-generic", false), ("10.1", true), ("4.20", false), ("?", false)]
        {
            assert_eq!(kernel(&Facts { release: release.into(), ..self::good() }).is_ok(), good, "{release}");
        }
    }

    #[test]
    fn missing_rights_are_named() {
        let facts = Facts { capabilities: !(1 << 21 | 1 << 12), ..good() };
        let Problem { found, fix } = privileges(&facts).unwrap_err();
        assert_eq!(found, "root without CAP_NET_ADMIN, CAP_SYS_ADMIN");
        assert!(fix.contains("--privileged"), "{fix}");
        // The one that root often lacks and sandboxes do not need.
        assert!(privileges(&Facts { capabilities: !(1 << 24), ..good() }).is_ok());
    }

    /// A good machine of an ordinary user.
    fn rootless(facts: &mut Facts) {
        (facts.is_root, facts.rootless) = (false, Some(Privilege::Subordinate));
        trial(facts).ids = Some(Ids::Subordinate { user: 100_000, group: 100_000 });
    }

    #[test]
    fn an_ordinary_user_sees_what_is_weaker() {
        let mut facts = good();
        rootless(&mut facts);
        let well = report(&facts);
        assert_eq!((well.ok, well.isolation), (true, Isolation::Full), "{well:#?}");
        assert!(well.differences.iter().any(|difference| difference.contains("the same ids")));
        let without_cgroups = |facts: &mut Facts| {
            rootless(facts);
            facts.cgroups = problem(crate::delegation::UNLIMITED, crate::delegation::DELEGATE);
        };
        check(without_cgroups, CGROUPS, "Delegate=yes", Isolation::Reduced);
        let single = |facts: &mut Facts| {
            rootless(facts);
            facts.rootless = Some(Privilege::Single);
            trial(facts).ids = Some(Ids::Single { why: "no".into(), fix: "apt-get install -y uidmap".into() });
        };
        check(single, IDS, "apt-get install -y uidmap", Isolation::Reduced);
        let closed = |facts: &mut Facts| {
            rootless(facts);
            trial(facts).network = refusal("make a TUN device", libc::EACCES);
        };
        check(closed, "network", "chmod 666 /dev/net/tun", Isolation::None);
    }

    #[test]
    fn namespaces_that_are_switched_off_are_switched_on() {
        let fix = "sysctl -w user.max_user_namespaces=15000";
        check(|facts| facts.max_user_namespaces = Some(0), "user-namespaces", fix, Isolation::None);
        check(|facts| facts.max_user_namespaces = None, "user-namespaces", "CONFIG_USER_NS", Isolation::None);
        let full = |facts: &mut Facts| trial(facts).namespaces = refusal("make the namespaces", libc::ENOSPC);
        check(full, "user-namespaces", "user.max_${n}_namespaces", Isolation::None);
    }

    #[test]
    fn an_overlay_that_cannot_be_mounted_has_its_reason() {
        let refuse = |step: &'static str, errno| move |facts: &mut Facts| trial(facts).overlay = refusal(step, errno);
        check(refuse("mount the overlay for /usr", libc::ENODEV), "overlay", "modprobe overlay", Isolation::None);
        check(refuse("map the ids of /usr", libc::EINVAL), "overlay", "ext4, xfs or btrfs", Isolation::None);
        let old = |facts: &mut Facts| {
            facts.release = "6.1.0-13-amd64".into();
            trial(facts).overlay = refusal("mount the overlay for /usr", libc::EINVAL);
        };
        check(old, "overlay", "newer kernel", Isolation::None);
    }

    #[test]
    fn a_missing_tun_device_is_made() {
        check(|facts| facts.has_tun_node = false, "network", "mknod -m 600 /dev/net/tun c 10 200", Isolation::None);
        let denied = |facts: &mut Facts| trial(facts).network = refusal("make a TUN device", libc::EPERM);
        check(denied, "network", "--device /dev/net/tun", Isolation::None);
        let absent = |facts: &mut Facts| trial(facts).network = refusal("make a TUN device", libc::ENODEV);
        check(absent, "network", "modprobe tun", Isolation::None);
    }

    #[test]
    fn a_filter_that_cannot_be_installed_means_no_isolation() {
        let refused = |facts: &mut Facts| trial(facts).filter = refusal("install the system-call filter", libc::EINVAL);
        check(refused, "seccomp", "CONFIG_SECCOMP_FILTER", Isolation::None);
    }

    #[test]
    fn cgroup_problems_keep_their_fix() {
        let problem = || Err(Problem { found: "no memory controller".into(), fix: "cgroup_enable=memory".into() });
        check(|facts| facts.cgroups = problem(), "cgroups", "cgroup_enable=memory", Isolation::None);
        check(|facts| facts.freezer = problem(), "freezer", "cgroup_enable=memory", Isolation::None);
    }

    #[test]
    fn soft_disk_limits_reduce_isolation_and_full_disks_prevent_it() {
        let soft = |facts: &mut Facts| {
            let fix = "apt-get install -y btrfs-progs".into();
            let shortcoming = Some(Shortcoming { what: "mkfs.btrfs is not installed".into(), fix });
            facts.disk = Ok(Forecast { kind: PoolKind::Directory, shortcoming, free: 50 * GIB, reserve: GIB });
        };
        check(soft, "disk", "apt-get install -y btrfs-progs", Isolation::Reduced);
        let full = |facts: &mut Facts| facts.disk.as_mut().expect("the disk is known").free = GIB / 2;
        check(full, "disk", "more than 1 GiB free where /data is", Isolation::None);
        check(|facts| facts.disk = Err("no such device".into()), "disk", "--data DIR", Isolation::None);
    }

    #[test]
    fn few_descriptors_and_missing_limits_of_all_are_reported() {
        check(|facts| facts.descriptors = 4096, "descriptors", "LimitNOFILE", Isolation::Full);
        let layer = |facts: &Facts| {
            let layers = report(facts).layers;
            layers.into_iter().find(|layer| layer.name == "limits of all sandboxes").expect("it is always told of")
        };
        assert!(layer(&good()).on);
        let without = Facts { together: Err("no delegated cgroup".into()), ..good() };
        assert!(!layer(&without).on && layer(&without).found.contains("delegated"));
    }

    #[test]
    fn missing_programs_have_one_fix_and_do_not_reduce_isolation() {
        let lack = |facts: &mut Facts| {
            facts.missing_programs = vec![
                Missing { program: "node", package: "nodejs" },
                Missing { program: "tput", package: "ncurses-bin" },
            ];
        };
        check(lack, "programs", "apt-get install -y nodejs ncurses-bin", Isolation::Full);
        check(|facts| facts.tls_roots = None, "tls-roots", "apt-get install -y ca-certificates", Isolation::Full);
    }
}
