//! Shared state of the guest: its configuration, the settings the host may change, and the
//! registries.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use protocol::envd::Init;
use protocol::guest::{GuestConfig, Lease};
use subtle::ConstantTimeEq;
use tokio::sync::watch;

use crate::filesystem::Watchers;
use crate::interpreter::Interpreter;
use crate::lease::LeaseEnd;
use crate::log::GuestLog;
use crate::memory_trim::MemoryTrimmer;
use crate::metrics::CpuMeter;
use crate::process::Processes;
use crate::users::{User, Users};

/// The shared root object.
pub(crate) struct Guest {
    /// `PATH` of the guest itself; every process starts with it.
    pub(crate) path: String,
    pub(crate) limits: Limits,
    pub(crate) users: Users,
    pub(crate) processes: Processes,
    pub(crate) watchers: Watchers,
    pub(crate) interpreter: Interpreter,
    pub(crate) log: Arc<GuestLog>,
    pub(crate) cpu: CpuMeter,
    pub(crate) memory_trimmer: MemoryTrimmer,
    pub(crate) lease: watch::Sender<LeaseEnd>,
    system_env: BTreeMap<String, String>,
    settings: Mutex<Settings>,
}

/// The limits of the sandbox, for `/metrics`.
pub(crate) struct Limits {
    pub(crate) memory_bytes: u64,
    pub(crate) cpu_count: u32,
    pub(crate) disk_bytes: u64,
}

/// Settings that `POST /init` may change.
struct Settings {
    access_token: Option<String>,
    env_vars: BTreeMap<String, String>,
    default_user: String,
    default_workdir: Option<String>,
}

/// The token given to `POST /init` differs from the current one.
#[derive(Debug)]
pub(crate) struct WrongToken;

/// The sandbox has no user of this name.
#[derive(Debug)]
pub(crate) struct UnknownUser(pub(crate) String);

impl Guest {
    pub(crate) fn new(config: GuestConfig, path: String, etc: &Path) -> Arc<Self> {
        let GuestConfig {
            sandbox_id: _,
            template_id: _,
            access_token,
            env_vars,
            system_env,
            default_user,
            default_workdir,
            lease_ends_unix_ms,
            lease_grace_seconds,
            memory_limit_bytes,
            cpu_count,
            disk_limit_bytes,
        } = config;
        let log = Arc::new(GuestLog::default());
        Arc::new(Self {
            path,
            limits: Limits {
                memory_bytes: memory_limit_bytes,
                cpu_count: cpu_count.max(1),
                disk_bytes: disk_limit_bytes,
            },
            users: Users::new(etc),
            processes: Processes::new(Arc::clone(&log)),
            watchers: Watchers::default(),
            interpreter: Interpreter::default(),
            log,
            cpu: CpuMeter::default(),
            memory_trimmer: MemoryTrimmer::default(),
            lease: watch::Sender::new(LeaseEnd::from(Lease {
                ends_unix_ms: lease_ends_unix_ms,
                grace_seconds: lease_grace_seconds,
            })),
            system_env,
            settings: Mutex::new(Settings { access_token, env_vars, default_user, default_workdir }),
        })
    }

    fn settings<T>(&self, read: impl FnOnce(&mut Settings) -> T) -> T {
        read(&mut self.settings.lock())
    }

    pub(crate) fn access_token(&self) -> Option<String> {
        self.settings(|settings| settings.access_token.clone())
    }

    pub(crate) fn default_workdir(&self) -> Option<String> {
        self.settings(|settings| settings.default_workdir.clone())
    }

    /// The user of this name, or the default user.
    pub(crate) fn user(&self, name: Option<&str>) -> Result<User, UnknownUser> {
        let name = match name {
            Some(name) => name.to_owned(),
            None => self.settings(|settings| settings.default_user.clone()),
        };
        self.users.find(&name).ok_or(UnknownUser(name))
    }

    /// Variables of the sandbox: the user's, overridden by the platform's.
    pub(crate) fn sandbox_env(&self) -> BTreeMap<String, String> {
        let mut variables = self.settings(|settings| settings.env_vars.clone());
        variables.extend(self.system_env.iter().map(|(key, value)| (key.clone(), value.clone())));
        variables
    }

    /// Applies the host's settings; refused as a whole when the token is wrong.
    pub(crate) fn init(&self, init: Init) -> Result<(), WrongToken> {
        let Init { env_vars, access_token, default_user, default_workdir } = init;
        self.settings(|settings| {
            if let Some(given) = access_token.filter(|token| !token.is_empty()) {
                match &settings.access_token {
                    Some(token) if !secrets_equal(token, &given) => return Err(WrongToken),
                    _ => settings.access_token = Some(given),
                }
            }
            if let Some(env_vars) = env_vars {
                settings.env_vars = env_vars;
            }
            if let Some(user) = default_user.filter(|user| !user.is_empty()) {
                settings.default_user = user;
            }
            if let Some(workdir) = default_workdir {
                settings.default_workdir = Some(workdir).filter(|workdir| !workdir.is_empty());
            }
            Ok(())
        })
    }
}

/// Compares in constant time.
pub(crate) fn secrets_equal(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}
